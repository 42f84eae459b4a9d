"""What is wrong and what to do about it, in Chinese, for each rule of alerts."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.domain.language import Language
from schedulemesh.metrics.alert_rules import filled_in

#: By the id of the rule.
CHINESE: dict[str, tuple[str, str]] = {}


def sentences_of(
    rule: str, labels: Mapping[str, str], english: tuple[str, str], language: Language
) -> tuple[str, str]:
    """The summary of an alert and what to do about it, in a language; of a rule without a text here, such as
    one of the operator's own, as they are.
    """
    if language == "en" or rule not in CHINESE:
        return english
    summary, action = (filled_in(template, tuple(labels.items())) for template in CHINESE[rule])
    return summary, action


def _chinese(rule_id: str, summary: str, action: str) -> None:
    CHINESE[rule_id] = summary, action


_chinese(
    "supervisor_restarted",
    "调度进程重启过。",
    "原因见该进程 actor 的运行日志：被杀死、内存不足，或所在节点丢失。重启不会丢失任何任务；如果反复重"
    "启，就需要处理。",
)
_chinese(
    "quota_nearly_full",
    "资源池 {pool} 的 {resource} 配额即将用完。",
    "接下来任务会排队，或者抢占其他任务。用 `schedulemesh usage --by owner` 查看是谁在用；可以提高配额"
    "，或允许该池借用。",
)
_chinese(
    "quota_exceeded",
    "资源池 {pool} 使用的 {resource} 超过了配额。",
    "资源池在使用中被调小时会出现这种情况。在足够多的任务结束之前，池中不会再启动任务；可以抢占一些任务"
    "，或提高配额。",
)
_chinese(
    "pool_budget_nearly_spent",
    "资源池 {pool} 的预算已用掉大部分。",
    "用 `schedulemesh budgets` 查看预计何时用完，用 `schedulemesh usage --by owner` 查看是谁在用。"
    "可以调大预算，或者把剩下的留给要紧的工作。",
)
_chinese(
    "pool_budget_spent",
    "资源池 {pool} 的预算已用完。",
    "`schedulemesh budgets` 说明用完之后如何处理，以及下一个周期何时开始。可以调大预算，或者让任务等到那时。",
)
_chinese(
    "owner_budget_nearly_spent",
    "负责人 {owner} 在资源池 {pool} 中的预算已用掉大部分。",
    "用 `schedulemesh budgets` 查看预计何时用完。",
)
_chinese(
    "owner_budget_spent",
    "负责人 {owner} 在资源池 {pool} 中的预算已用完。",
    "`schedulemesh budgets` 说明用完之后如何处理，以及下一个周期何时开始。"
    "运维可以用资源池的 owner_budgets 调大它。",
)
_chinese(
    "starvation",
    "资源池 {pool} 中有任务排队时间过长。",
    "用 `schedulemesh queue --pool {pool}` 找到它，再用 `schedulemesh explain` 查看原因。被搁置（hold）"
    "的任务也计算在内：忘记处理的，请放行或取消。",
)
_chinese(
    "stuck_admission",
    "资源池 {pool} 中有 Agent 已获准，却一直没有启动。",
    "用 `schedulemesh agents -f pool={pool}` 查看正在等待或启动的 Agent，用 `schedulemesh explain` 查看"
    "它在等什么：抢占、placement group，还是进程启动太慢。",
)
_chinese(
    "preemption_storm",
    "资源池 {pool} 在 5 分钟内有大量任务被抢占。",
    "用 `schedulemesh preemptions` 查看谁抢占了谁。可以用策略中的 `preemption_cooldown`、`min_runtime` "
    "或 `lost_work_budget` 加以限制，或者给发起抢占的工作单独分配配额。",
)
_chinese(
    "slow_preemption",
    "资源池 {pool} 中有任务的抢占持续时间过长。",
    "它的 Agent 没有及时保存状态或没有及时结束，见 `schedulemesh preemptions`。可以调低策略中的 "
    "`save_timeout` 或 `cancel_timeout`，或者加快保存。",
)
_chinese(
    "lost_state",
    "资源池 {pool} 中有任务丢失了工作：没有保存的状态。",
    "用 `schedulemesh history --pool {pool}` 查看是哪些任务。请为该池注册状态处理函数，或用 "
    "`save_task_state` 定期保存。",
)
_chinese(
    "stale_heartbeat",
    "资源池 {pool} 的 Agent {agent} 已很久没有联系调度器。",
    "它的进程卡住了，或者它所在的节点与调度器之间网络不通。`schedulemesh health` 会向 Ray 查询它，如果"
    "已经不在就重新创建。",
)
_chinese(
    "group_leak",
    "存在调度器没有记录的 placement group。",
    "它们占着资源，却没有人用。`schedulemesh orphans` 会列出它们；如果里面没有 Agent 在运行，就结束它们"
    "。",
)
_chinese(
    "journal_errors",
    "持久化日志写不进去，或在最近 5 分钟内写入失败过。",
    "写不进去时，不会启动、抢占或更改任何任务。用 `schedulemesh doctor` 检查存放它的磁盘或数据库。",
)
_chinese(
    "loop_overdue",
    "调度器的循环 {loop} 出错或卡住。",
    "它负责观察的变化此时无人处理：`cluster_monitor` 发现死去的 Agent 和丢失的节点，`health` 重建 Agent"
    "，`leases` 结束无人持有的租约。错误见调度进程 actor 的运行日志；如果是卡住，就结束该进程：Ray 会"
    "重新启动它，不会丢失任何东西。",
)
_chinese(
    "idle_gpus",
    "资源池 {pool} 中有 Agent 占着 GPU 却没有使用。",
    "GPU 空闲多久才算，由策略规定。用 `schedulemesh agents -f pool={pool}` 查看是哪些 Agent；可以结束它"
    "们，或者减少 GPU 后再运行。",
)
_chinese(
    "job_over_claim",
    "资源池 {pool} 中有作业在 Ray 中占用的 {resource} 超过了申请量。",
    "用 `schedulemesh jobs -o wide` 查看是哪些作业，并按实际需要重新提交。策略中的 `over_claim` 可以结"
    "束这样的作业。",
)
