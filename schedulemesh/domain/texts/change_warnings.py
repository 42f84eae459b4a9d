"""What is said of a change that was made, and of what its caller may not have intended by it; and what uses a
pool.
"""

from __future__ import annotations

from collections.abc import Mapping

CHANGE_WARNINGS: Mapping[str, tuple[str, str]] = {
    "tasks_not_cancelled": (
        "{count} of the tasks were not cancelled: {why}",
        "有 {count} 个任务没有取消：{why}",
    ),
    "protects_unknown_pools": (
        "protected_pools names {pools}, and there is no such pool as yet",
        "protected_pools 里的 {pools} 目前不存在",
    ),
    "handlers_without_pool": (
        (
            "there is no pool {pool!r} as yet{near}; the handlers are kept, and take effect when it is "
            "created"
        ),
        "目前没有资源池 {pool!r}{near}；保存与恢复函数已登记，在它创建后生效",
    ),
    "token_without_pool": (
        "there is no pool {pool!r} as yet{near}; token {token!r} is limited to it all the same",
        "目前没有资源池 {pool!r}{near}；令牌 {token!r} 仍然只限于它",
    ),
    "token_without_pools": (
        "there are no pools as yet of {count:,} other names either",
        "另有 {count:,} 个名称，目前也没有这样的资源池",
    ),
    "stays_cordoned": (
        (
            "node {node!r} was cordoned before it was drained, and stays so; "
            "cordon_node({node!r}, cordoned=False) opens it"
        ),
        "节点 {node!r} 在排空之前就已封锁，现在仍然封锁；用 cordon_node({node!r}, cordoned=False) 解除封锁",
    ),
    "agent_kept": (
        "agent {agent!r} was not ended: {count} of its tasks go on ({tasks:, })",
        "Agent {agent!r} 没有结束：它还有 {count} 个任务在运行（{tasks:、}）",
    ),
    "loan_outside_cohort": (
        (
            "pool {owner!r} has {amount} on loan to pool {borrower!r}, with which it shares no cohort any "
            "more; the loan ends with its agents, or when {owner!r} reclaims it"
        ),
        (
            "资源池 {owner!r} 借给 {borrower!r} 的 {amount} 还没有归还，而二者已不在同一个共享组；"
            "占用它的 Agent 结束或 {owner!r} 收回时归还"
        ),
    ),
    "wait_in_vain": (
        (
            "{count} of the tasks that wait in pool {pool!r} cannot start in it as it is defined now: "
            "{tasks}; those behind them do not wait for them, and explain says what each of them lacks"
        ),
        (
            "资源池 {pool!r} 里有 {count} 个排队的任务，按现在的定义无法启动：{tasks}；排在后面的任务不会等"
            "它们，各自缺什么见 explain"
        ),
    ),
    "firsts_and_others": ("{names:, } and others", "{names:、}等"),
    "lent_above_limit": (
        (
            "lending_limit of pool {pool!r} is below the {amount} that it has lent: no loan ends for that, "
            "and no further one is made; owners may reclaim what they have lent"
        ),
        (
            "资源池 {pool!r} 的 lending_limit 低于它已借出的 {amount}：已借出的不会因此结束，也不再借出；"
            "借出方可以收回"
        ),
    ),
    "borrowed_above_limit": (
        (
            "borrowing_limit of pool {pool!r} is below the {amount} that it has borrowed: no loan ends for "
            "that, and no further one is made; owners may reclaim what they have lent"
        ),
        (
            "资源池 {pool!r} 的 borrowing_limit 低于它已借入的 {amount}：已借入的不会因此结束，也不再借入；"
            "借出方可以收回"
        ),
    ),
    "pool_still_named": (
        "pool {pool!r} is still named by {users:, }; a new pool of this name is meant, too",
        "{users:、}仍然指向资源池 {pool!r}；以后新建的同名资源池也在其中",
    ),
    "named_by_token": ("token {token!r}", "令牌 {token!r}"),
    "named_by_tokens": ("{count:,} other tokens", "另外 {count:,} 个令牌"),
    "named_by_policy": ("protected_pools of the policy", "策略的 protected_pools "),
    "pool_ends_nevertheless": (
        "pool {pool!r} is being deleted all the same; undrain_pool({pool!r}) keeps it",
        "资源池 {pool!r} 仍会被删除；用 undrain_pool({pool!r}) 保留它",
    ),
    "pool_above_quota": (
        "pool {pool!r} has {kinds:; }: it shrinks as tasks end{further}",
        "资源池 {pool!r} 中，{kinds:；}：随着任务结束逐步回落{further}",
    ),
    "kind_above_quota": (
        "{kind} {used} in use, {above} above the new quota",
        "{kind} 已用 {used}，超出新配额 {above}",
    ),
    "lent_is_called_back": (
        "; what it has lent is called back",
        "；已借出的会被收回",
    ),
    "cohort_is_new": (
        "cohort {cohort!r} is new{near}: pool {pool!r} borrows from nobody as long as it is alone in it",
        "共享组 {cohort!r} 是新的{near}：只有资源池 {pool!r} 在其中时，它无处可借",
    ),
    "quota_above_nodes": (
        (
            "pool {pool!r} promises {quota}, and all nodes together have {total}: {beyond} of it cannot be "
            "used before nodes join"
        ),
        "资源池 {pool!r} 的配额是 {quota}，而所有节点合计 {total}：其中 {beyond} 要等新节点加入才能用",
    ),
    "pool_runs_tasks": (
        "{count:# task|# tasks} ({names:, }{more}) {count:runs|run} in it",
        "{count} 个任务（{names:、}{more}）在其中运行",
    ),
    "pool_runs_agents": (
        "{count:# agent|# agents} ({names:, }{more}) {count:runs|run} in it",
        "{count} 个 Agent（{names:、}{more}）在其中运行",
    ),
    "pool_queues_tasks": (
        "{count:# task|# tasks} ({names:, }{more}) {count:waits|wait} in its queue",
        "{count} 个任务（{names:、}{more}）在其中排队",
    ),
    "pool_has_lent": (
        "pool {borrower!r} has {amount} of it on loan",
        "资源池 {borrower!r} 借用了其中的 {amount}",
    ),
}
