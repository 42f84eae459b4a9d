"""What the bots of chat services are sent, signed as each of them asks for, and what their answers mean.

Their documentation:

- Feishu and Lark: open.feishu.cn, "Custom bot usage guide"
- DingTalk: open.dingtalk.com, "Custom robots"
- WeCom: developer.work.weixin.qq.com, path 91770
- Slack: docs.slack.dev, "Sending messages using incoming webhooks"
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from schedulemesh.config.alert_receivers import WebhookFormat
from schedulemesh.runtime.alerts.texts import Text


class ChatService(msgspec.Struct, frozen=True, kw_only=True):
    """How one service is spoken to."""

    #: The body for a text, the seconds since 1970 and the secret.
    body: Callable[[Text, float, str], dict[str, object]]
    #: The answer's body -> what it refuses; empty: it has accepted.
    refusal: Callable[[bytes], str]
    #: What is added to the address, for the seconds since 1970 and the secret.
    query: Callable[[float, str], str] = lambda _now, _secret: ""
    #: Bytes of a text.
    most_bytes: int
    #: Seconds between two messages, by the service's limit.
    interval_s: float


def _hmac(key: str, message: str) -> str:
    return base64.b64encode(
        hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()
    ).decode()


def _feishu_body(text: Text, now: float, secret: str) -> dict[str, object]:
    """A post: its texts are shown as they are, whereas a plain text may mention people."""
    lines = [[{"tag": "text", "text": line}] for line in text.lines]
    post = {"zh_cn": {"title": text.title, "content": lines}}
    body: dict[str, object] = {"msg_type": "post", "content": {"post": post}}
    if secret:
        at = str(int(now))
        body |= {"timestamp": at, "sign": _hmac(f"{at}\n{secret}", "")}
    return body


def _dingtalk_query(now: float, secret: str) -> str:
    if not secret:
        return ""
    at = str(int(now * 1000))
    return urlencode({"timestamp": at, "sign": _hmac(secret, f"{at}\n{secret}")})


def _plain_body(text: Text, _now: float, _secret: str) -> dict[str, object]:
    return {"msgtype": "text", "text": {"content": str(text)}}


def _wecom_body(text: Text, now: float, secret: str) -> dict[str, object]:
    """Without ``<@``, by which a name could mention people; what it becomes is as long."""
    lines = tuple(line.replace("<@", "(@") for line in text.lines)
    return _plain_body(Text(text.title.replace("<@", "(@"), lines), now, secret)


def _slack_body(text: Text, _now: float, _secret: str) -> dict[str, object]:
    """Escaped, so that no name mentions a channel."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": escaped}


def _code(names: Sequence[str]) -> Callable[[bytes], str]:
    """The refusal in an answer whose code, under one of these names, is not 0."""

    def refusal(answer: bytes) -> str:
        try:
            fields = msgspec.json.decode(answer)
        except msgspec.DecodeError:
            return "its answer is no JSON"
        if not isinstance(fields, Mapping):
            return "its answer has no code"
        code = next((fields[name] for name in names if name in fields), None)
        if code == 0 and not isinstance(code, bool):
            return ""
        message = str(fields.get("errmsg") or fields.get("msg") or "")[:200]
        return f"it answered with the code {code}: {message}".rstrip(": ")

    return refusal


def _slack_refusal(answer: bytes) -> str:
    text = answer[:200].decode(errors="replace").strip()
    return "" if text == "ok" else f"it answered {text!r}"


_REFUSES_BY_ERRCODE = _code(("errcode",))
SERVICES: Mapping[WebhookFormat, ChatService] = {
    # 100 messages a minute, 5 a second; a body has 20 KB.
    WebhookFormat.FEISHU: ChatService(
        body=_feishu_body,
        refusal=_code(("code", "StatusCode")),
        most_bytes=10_000,
        interval_s=1.0,
    ),
    # 20 messages a minute; who sends more is refused for ten minutes.
    WebhookFormat.DINGTALK: ChatService(
        body=_plain_body,
        query=_dingtalk_query,
        refusal=_REFUSES_BY_ERRCODE,
        most_bytes=10_000,
        interval_s=4.0,
    ),
    # 20 messages a minute; a text has 2,048 bytes.
    WebhookFormat.WECOM: ChatService(
        body=_wecom_body, refusal=_REFUSES_BY_ERRCODE, most_bytes=2048, interval_s=4.0
    ),
    # One message a second.
    WebhookFormat.SLACK: ChatService(
        body=_slack_body, refusal=_slack_refusal, most_bytes=10_000, interval_s=1.0
    ),
}
