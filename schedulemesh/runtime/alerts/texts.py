"""Alerts as texts for people, in English or Chinese."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from schedulemesh.domain.language import Language
from schedulemesh.metrics.alert_evaluation import TEST_RULE, Alert, AlertState
from schedulemesh.metrics.alert_rules import filled_in
from schedulemesh.metrics.alert_texts import CHINESE
from schedulemesh.runtime.alerts.notices import NOTICE, sentence_key


class Text(msgspec.Struct, frozen=True):
    """A message: a title, and lines below it; as a ``str`` all of them."""

    title: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((self.title, *self.lines))


def text_of(alerts: Sequence[Alert], scheduler: str, language: Language, most_bytes: int) -> Text:
    """One message about these alerts, of at most so many bytes: what does not fit is counted.

    The title always has the word ScheduleMesh, by which services can tell whose messages to let pass.
    """
    title = f"ScheduleMesh {scheduler}"
    blocks = [_block(alert, language) for alert in alerts]
    lines: list[str] = []
    for number, block in enumerate(blocks):
        rest = _rest(len(blocks) - number, language)
        longer = [*lines, *block]
        if _bytes([title, *longer, rest]) > most_bytes:
            lines = [*lines, rest] if lines else [*_cut([title], block, rest, most_bytes)]
            break
        lines = longer
    return Text(title, tuple(lines))


def _block(alert: Alert, language: Language) -> list[str]:
    """The lines about one alert."""
    summary, action = _sentences(alert, language)
    if alert.state is AlertState.NOTICE:
        head = _HEADS[language][alert.rule] + dict(alert.labels)["task"]
        return [head, *filter(None, (summary, action))]
    fires = alert.state is AlertState.FIRING
    head = _HEADS[language][alert.severity if fires else "resolved"] + alert.rule
    if not fires:
        return [head, summary]
    value = "∞" if math.isinf(alert.value) else f"{alert.value:.6g}"
    compared = _COMPARED[language].format(value=value, threshold=f"{alert.threshold:.6g}")
    return [head, summary if alert.rule == TEST_RULE else summary + compared, action]


def _sentences(alert: Alert, language: Language) -> tuple[str, str]:
    """What is wrong, and what to do about it."""
    rule = alert.rule
    if alert.state is AlertState.NOTICE:
        rule = NOTICE + sentence_key(rule.removeprefix(NOTICE), alert.labels)
    chinese = _CHINESE.get(rule) if language == "zh" else None
    if chinese is None:
        return alert.summary, alert.action
    summary, action = (filled_in(template, alert.labels) for template in chinese)
    return summary, action


def _rest(count: int, language: Language) -> str:
    return f"… 另有 {count} 条" if language == "zh" else f"… and {count} more"


def _bytes(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _cut(before: list[str], block: list[str], rest: str, most_bytes: int) -> list[str]:
    """As much of the block as there is room for: names may be long."""
    room = most_bytes - _bytes([*before, rest])
    cut = "\n".join(block).encode()[: max(room - 1, 0)].decode(errors="ignore")
    return [*cut.splitlines(), rest]


_HEADS: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "critical": "[CRITICAL] ",
        "warning": "[WARNING] ",
        "info": "[INFO] ",
        "resolved": "[RESOLVED] ",
        "notice_started": "[STARTED] ",
        "notice_preempted": "[PREEMPTED] ",
        "notice_failed": "[FAILED] ",
        "notice_lost": "[LOST] ",
        "notice_completed": "[COMPLETED] ",
        "notice_cancelled": "[CANCELLED] ",
        "notice_time_limit_soon": "[TIME LIMIT SOON] ",
        "notice_time_limit_reached": "[TIME LIMIT] ",
        "notice_idle_limit_soon": "[GPUS IDLE] ",
        "notice_idle_limit_reached": "[IDLE LIMIT] ",
    },
    "zh": {
        "critical": "【严重告警】",
        "warning": "【告警】",
        "info": "【提示】",
        "resolved": "【已恢复】",
        "notice_started": "【任务启动】",
        "notice_preempted": "【任务被抢占】",
        "notice_failed": "【任务失败】",
        "notice_lost": "【任务丢失】",
        "notice_completed": "【任务完成】",
        "notice_cancelled": "【任务取消】",
        "notice_time_limit_soon": "【即将到时限】",
        "notice_time_limit_reached": "【到时限结束】",
        "notice_idle_limit_soon": "【GPU 空闲】",
        "notice_idle_limit_reached": "【空闲结束】",
    },
}
_COMPARED: Mapping[Language, str] = {
    "en": " (value {value}, threshold {threshold})",
    "zh": "（当前值 {value}，阈值 {threshold}）",
}
#: What is wrong and what to do about it, by the id of the rule or the kind of the notice.
_CHINESE: dict[str, tuple[str, str]] = {**CHINESE}


def _chinese(rule_id: str, summary: str, action: str) -> None:
    _CHINESE[rule_id] = summary, action


_chinese(
    TEST_RULE,
    "这是一条测试消息。",
    "收到它，说明告警可以送达这里。无需处理。",
)
_chinese("notice_started", "在资源池 {pool} 中启动，此前排队 {waited}。", "")
_chinese(
    "notice_preempted",
    "在资源池 {pool} 中被 {by} 抢占，损失了 {lost} 的工作。",
    "用 `schedulemesh explain {task}` 查看它是否恢复、何时恢复。",
)
_chinese(
    "notice_preempted_queued",
    "在资源池 {pool} 中被 {by} 抢占，损失了 {lost} 的工作；"
    "重新排队，在 {waiting} 个任务中排第 {position} 位。",
    "用 `schedulemesh explain {task}` 查看何时恢复。",
)
_chinese(
    "notice_failed",
    "在资源池 {pool} 中运行 {ran} 后失败：{why}",
    "用 `schedulemesh logs {task}` 查看输出。",
)
_chinese(
    "notice_lost",
    "在资源池 {pool} 中运行 {ran} 后丢失：{why}",
    "用 `schedulemesh explain {task}` 查看它是否恢复。",
)
_chinese("notice_completed", "在资源池 {pool} 中运行 {ran} 后完成。", "")
_chinese("notice_cancelled", "在资源池 {pool} 中被取消：{why}", "")
_chinese(
    "notice_time_limit_soon",
    "在资源池 {pool} 中的运行时间即将达到上限，届时会保存状态并结束。",
    "用 `schedulemesh explain {task}` 查看何时结束；管理员可以延长上限。",
)
_chinese(
    "notice_time_limit_reached",
    "在资源池 {pool} 中运行 {ran}，达到运行时间上限，已结束。",
    "用 `schedulemesh explain {task}` 查看它是否恢复、保存了什么。",
)
_chinese(
    "notice_idle_limit_soon",
    "在资源池 {pool} 中占用的 GPU 没有被使用，继续空闲会被结束。",
    "用 `schedulemesh explain {task}` 查看何时结束；`schedulemesh cancel {task}` 立即释放。",
)
_chinese(
    "notice_idle_limit_reached",
    "在资源池 {pool} 中占用的 GPU 长时间没有被使用，已结束。",
    "用 `schedulemesh explain {task}` 查看保存了什么。",
)
