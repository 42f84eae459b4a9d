"""What commands ask before they end something."""

from __future__ import annotations

from collections.abc import Mapping

QUESTIONS: Mapping[str, tuple[str, str]] = {
    "end_scheduler": (
        "End scheduler {name!r} with {agents} agents and delete its journal?",
        "结束调度器 {name!r} 及其 {agents} 个 Agent，并删除事务日志？",
    ),
    "end_rest_of_scheduler": (
        "End scheduler {name!r} and what is left of it? Its journal stays as it is.",
        "结束调度器 {name!r} 及其剩余部分？事务日志保持不变。",
    ),
    "scheduler_has_ended": ("scheduler {name!r} has ended", "调度器 {name!r} 已结束"),
    "end_orphans": (
        "End {count:# orphaned actor|# orphaned actors}?",
        "结束 {count} 个孤儿 Actor？",
    ),
}
