"""Who receives alerts: webhooks, the bots of chat services, mail, and classes of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.language import LANGUAGES, Language
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import parse_count, parse_timeout
from schedulemesh.errors import InvalidRequestError, nearest, shown

Receiver = TypeVar("Receiver", bound=msgspec.Struct)

#: Characters of an address.
_MAX_URL = 2048
#: Addressees of one mail.
_MAX_ADDRESSEES = 100
#: Where clouds serve the credentials of a machine to its processes, beside link-local addresses.
_METADATA = ("100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")


class WebhookFormat(str, Enum):
    """What a webhook is sent, and by what answer it accepts that."""

    #: The fields of the alert; accepted by the status of the answer.
    JSON = "json"
    #: The bots of group chats: a text for people; accepted by what the body of the answer says.
    FEISHU = "feishu"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    SLACK = "slack"


#: The formats whose requests a secret signs. The others have their secret in the address.
_SIGNED = (WebhookFormat.JSON, WebhookFormat.FEISHU, WebhookFormat.DINGTALK)


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """An address to which alerts are sent over HTTP. Raises ValueError for one that cannot be used."""

    #: ``http://`` or ``https://``; empty: it is in the environment variable ``url_env``.
    url: str = ""
    #: The environment variable that contains the address, read where the scheduler is created.
    url_env: str = ""
    #: What is sent: as JSON, or as the bot of a chat service takes it.
    format: WebhookFormat = WebhookFormat.JSON
    #: The key of the signature; empty: requests are not signed.
    secret: str = ""
    #: The environment variable that contains the secret, read where the scheduler is created.
    secret_env: str = ""
    #: How metrics and the log call it; empty: by its host.
    name: str = ""
    #: The language of a text for people.
    language: Language = "en"
    #: ``http://host:port`` of a proxy; empty: there is none.
    proxy: str = ""
    #: Seconds until an attempt that is not answered has failed.
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        """Convert to exact values and check them."""
        force = msgspec.structs.force_setattr
        force(self, "format", member_of(WebhookFormat, self.format, "the format of a webhook"))
        host = self._checked_host()
        force(self, "name", parse_name(self.name, "the webhook's name") if self.name else host)
        what = f"webhook {self.name!r}"
        _check_texts(self, what, ("secret", "secret_env", "url_env"))
        if (self.secret or self.secret_env) and self.format not in _SIGNED:
            raise InvalidRequestError(
                f"{what} cannot have a secret: requests to {self.format.value} are not signed. Its address "
                "is the secret; url_env keeps it out of files"
            )
        force(self, "language", _language(self.language, what))
        if self.proxy:
            _http_host(self.proxy, f"the proxy of {what}", schemes=("http",))
        force(self, "timeout_s", parse_timeout(self.timeout_s, "timeout_s"))

    def _checked_host(self) -> str:
        """The host of the address, or what it is called while the address is in the environment."""
        if not self.url and not self.url_env:
            raise InvalidRequestError("a webhook must have the field url, or url_env")
        if self.url:
            host = _http_host(self.url, "the webhook's url")
            if serves_credentials(host):
                raise _bad_url(self.url, "the webhook's url", NO_CREDENTIALS.format(host))
            return host
        return self.format.value

    def __repr__(self) -> str:
        """The webhook without its secret and its path, which may contain one."""
        return f"Webhook(name={self.name!r}, url={_without_path(self.url)!r})"

    def with_secrets(self, environ: Mapping[str, str]) -> Webhook:
        """The webhook with what the environment contains of it. Raises InvalidRequestError."""
        return _from_environment(self, f"webhook {self.name!r}", ("url", "secret"), environ)

    def public(self) -> Webhook:
        """The webhook without its secret and its path."""
        return msgspec.structs.replace(
            self, url=_without_path(self.url), secret="", proxy=_without_path(self.proxy)
        )


class MailSecurity(str, Enum):
    """How the connection to a mail server is encrypted."""

    #: Encrypted after the greeting; port 587.
    STARTTLS = "starttls"
    #: Encrypted from the start; port 465.
    TLS = "tls"
    #: Not at all; port 25.
    NONE = "none"


#: The usual port of each.
_PORTS = {MailSecurity.STARTTLS: 587, MailSecurity.TLS: 465, MailSecurity.NONE: 25}


class Mail(msgspec.Struct, frozen=True, kw_only=True):
    """People to whom alerts are sent by mail. Raises ValueError for what cannot be used."""

    #: The mail server (SMTP).
    host: str
    #: The addresses of those who receive it.
    to: tuple[str, ...]
    #: The address of the sender.
    sender: str
    security: MailSecurity = MailSecurity.STARTTLS
    #: 0: the usual one of ``security``.
    port: int = 0
    #: Empty: without a login.
    username: str = ""
    password: str = ""
    #: The environment variable that contains the password, read where the scheduler is created.
    password_env: str = ""
    #: How metrics and the log call it; empty: by the first address.
    name: str = ""
    language: Language = "en"
    #: Seconds until a server that does not answer has failed.
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Convert to exact values and check them."""
        force = msgspec.structs.force_setattr
        addressees = as_elements(self.to, "to", "a list of mail addresses")
        if not 0 < len(addressees) <= _MAX_ADDRESSEES:
            raise InvalidRequestError(
                f"mail goes to 1 to {_MAX_ADDRESSEES} addresses, not to {len(addressees)}"
            )
        force(self, "to", tuple(_mail_address(one, "to") for one in addressees))
        force(self, "sender", _mail_address(self.sender, "sender"))
        name = self.name or self.to[0].replace("@", "-at-")
        force(self, "name", parse_name(name, "the name of mail"))
        what = f"mail {self.name!r}"
        _check_texts(self, what, ("host", "username", "password", "password_env"))
        if not self.host or not self.host.isascii() or set(self.host) & set("/:@ "):
            raise InvalidRequestError(
                f"the host of {what} must be the name of a server, such as smtp.example.com; its port is "
                "given as port"
            )
        if not self.username and (self.password or self.password_env):
            raise InvalidRequestError(f"{what} has a password and no username")
        security = member_of(MailSecurity, self.security, f"the security of {what}")
        if self.username and security is MailSecurity.NONE:
            raise InvalidRequestError(
                f"{what} would send its password without encryption; set security to starttls or tls"
            )
        force(self, "security", security)
        port = parse_count(self.port, "port", 0, 65535) or _PORTS[security]
        force(self, "port", port)
        force(self, "language", _language(self.language, what))
        force(self, "timeout_s", parse_timeout(self.timeout_s, "timeout_s"))

    def __repr__(self) -> str:
        """The addressees and their server, without the password."""
        return f"Mail(name={self.name!r}, host={self.host!r}, to={self.to!r})"

    def with_secrets(self, environ: Mapping[str, str]) -> Mail:
        """The same with the password that the environment contains. Raises InvalidRequestError."""
        return _from_environment(self, f"mail {self.name!r}", ("password",), environ)

    def public(self) -> Mail:
        """The same without the password."""
        return msgspec.structs.replace(self, password="", password_env="")


class ReceiverRef(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver supplied by the user: a subclass of AlertReceiver."""

    name: str
    #: Its import path ``module:Class``.
    path: str
    #: Entries of ``sys.path`` of the job that named it, for importing its module.
    sys_path: tuple[str, ...] = ()


def _from_environment(
    receiver: Receiver, what: str, fields: tuple[str, ...], environ: Mapping[str, str]
) -> Receiver:
    """The receiver with those of its fields that the environment contains (``<field>_env``)."""
    for field in fields:
        variable = getattr(receiver, f"{field}_env")
        if not variable or getattr(receiver, field):
            continue
        if not environ.get(variable):
            raise InvalidRequestError(
                f"{what} takes its {field} from the environment variable {variable}, which is not set"
            )
        receiver = msgspec.structs.replace(receiver, **{field: environ[variable]})
    return receiver


def _check_texts(receiver: object, what: str, fields: tuple[str, ...]) -> None:
    """Raise InvalidRequestError for a field that is no printable text, without showing it."""
    for field in fields:
        text = as_text(getattr(receiver, field))
        if text is None or not text.isprintable():
            raise InvalidRequestError(f"the {field} of {what} must be a printable text")


def member_of(kind: Any, value: object, what: str) -> Any:
    """A member of an enumeration by its value."""
    allowed = [each.value for each in kind]
    if is_a(value, kind) or as_text(value) in allowed:
        return kind(value)
    raise InvalidRequestError(
        f"{what} is {shown(value)}{nearest(str(value), allowed)}; allowed are {', '.join(allowed)}"
    )


def _language(value: object, what: str) -> str:
    if value not in LANGUAGES:
        raise InvalidRequestError(
            f"the language of {what} is {shown(value)}; allowed are {', '.join(LANGUAGES)}"
        )
    return str(value)


def _mail_address(value: object, field: str) -> str:
    """An address of mail, which cannot end a line of the header that it is in."""
    text = as_text(value) or ""
    local, at, domain = text.rpartition("@")
    if not (local and at and domain) or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidRequestError(
            f"{field} has {shown(value)}, which is no mail address such as team@example.com"
        )
    return text


def _http_host(value: object, what: str, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """The host of an address. Raises InvalidRequestError where it is no address with such a scheme."""
    url = as_text(value)
    if (
        url is None
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or len(url) > _MAX_URL
    ):
        raise _bad_url(
            value, what, "it must be a text of printable ASCII characters without spaces"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may contain a part of the address
        raise _bad_url(value, what, "its host or its port is not valid") from None
    if parts.scheme not in schemes:
        allowed = " or ".join(f"{scheme}://" for scheme in schemes)
        raise _bad_url(value, what, f"it must begin with {allowed}")
    if not host or port == 0:
        raise _bad_url(value, what, "it must name a host, and a port if it is not the usual one")
    if parts.username is not None:
        raise _bad_url(value, what, "it must not contain a user, who would not be sent")
    if parts.fragment:
        raise _bad_url(value, what, "it must not have a fragment (#)")
    return host


#: Why an address is sent no alert.
NO_CREDENTIALS = (
    "{} is a link-local address, or another at which clouds serve the credentials of a machine, so it is "
    "sent nothing"
)


def serves_credentials(host: str) -> bool:
    """Whether this is an address at which clouds serve the credentials of a machine to its processes: it is
    link-local, or one of those that are known. A name is none; it may stand for one.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_link_local or str(address) in _METADATA


def _bad_url(value: object, what: str, why: str) -> InvalidRequestError:
    """The error; it shows no more of the address than its scheme, which contains no secret."""
    scheme, colon, _ = (as_text(value) or "").partition("://")
    begin = f", which begins with {scheme[:40]!r}," if colon else ""
    return InvalidRequestError(f"{what}{begin} cannot be used: {why}")


def _without_path(url: str) -> str:
    if not url:
        return ""
    parts = urlsplit(url)
    hidden = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{hidden}"
