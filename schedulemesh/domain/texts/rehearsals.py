"""What ``schedulemesh rehearse`` says beside its table: who gains, and how exact the answer is."""

from __future__ import annotations

from collections.abc import Mapping

#: What of a history could not be rehearsed.
_LEFT_OUT: Mapping[str, tuple[str, str]] = {
    "lacks_registered_tasks": (
        "tasks registered on running agents",
        "登记到运行中 Agent 的任务",
    ),
    "lacks_restarted_agents": ("agents that Ray restarted", "由 Ray 重启的 Agent"),
    "lacks_parts_of_submissions": (
        "submissions that the history does not contain whole",
        "历史记录不完整的提交",
    ),
    "lacks_earlier_groups": ("placement groups from before the period", "该时段之前的占位组"),
    "lacks_earlier_events": (
        "events before the period that are not kept any more",
        "该时段之前且已不再保留的事件",
    ),
    "lacks_learned_durations": (
        "attempts before the period, from which durations had been learned",
        "该时段之前、曾用于估计时长的运行",
    ),
}

REHEARSALS: Mapping[str, tuple[str, str]] = {
    "rehearsal_waits": (
        "{since} to {until}: {less:# task|# tasks} would have waited less, {more} more",
        "{since} 至 {until}：{less} 个任务的等待会缩短，{more} 个会延长",
    ),
    "rehearsal_more_nodes": (
        "{count:# node was|# nodes were} added to those of the history, each with {each}",
        "在历史节点之外增加了 {count} 个节点，每个节点有 {each}",
    ),
    "rehearsal_fewer_nodes": (
        "{count:# node|# nodes} of the history, the last to join, {count:is|are} left out",
        "去掉了历史中最后加入的 {count} 个节点",
    ),
    "rehearsal_refused": (
        "{count:# submission|# submissions} would have been refused; the first is {first}",
        "{count} 次提交会被拒绝，第一个是 {first}",
    ),
    "refused_task": ("{task}: {error}", "{task}：{error}"),
    "rehearsal_less": ("less: {tasks:, }", "缩短最多：{tasks:，}"),
    "rehearsal_more": ("more: {tasks:, }", "延长最多：{tasks:，}"),
    "rehearsal_task": (
        "{task} ({before:span} → {after:span})",
        "{task}（{before:span} → {after:span}）",
    ),
    "rehearsal_same": (
        "under the policy that was in force {same} of {count} decisions are the same ({part} %)",
        "按当时的策略重新调度，{count} 个决策中有 {same} 个与历史相同（{part}%）",
    ),
    "rehearsal_all_same": (
        "under the policy that was in force all {count} decisions are as in the history",
        "按当时的策略重新调度，全部 {count} 个决策与历史一致",
    ),
    "rehearsal_differs": (
        "differs: {task}, attempt {attempt}, {kind}{how}: {recorded} in the history, {rehearsed} rehearsed",
        "不同：{task} 第 {attempt} 次运行，{kind}{how}：历史中{recorded}，推演中{rehearsed}",
    ),
    "decision_admitted": ("admitted", "准入"),
    "decision_evicted": ("evicted", "被抢占"),
    "decision_removed": ("removed", "移出队列"),
    "at_time": ("{time}", "为 {time}"),
    "at_no_time": ("never", "没有发生"),
    "rehearsal_too_long": (
        "it did not end within {limit:span}, so it was stopped; choose a shorter period",
        "超过 {limit:span} 未完成，已停止；请选择更短的时间段",
    ),
    "rehearsal_left_out": ("not rehearsed: {count} × {what}", "未推演：{count} × {what}"),
    **_LEFT_OUT,
}
