"""What refusals say of changes to pools, cohorts, nodes, agents, tokens and running tasks, and of results,
saved states and the history.
"""

from __future__ import annotations

from collections.abc import Mapping

_POOLS: Mapping[str, tuple[str, str]] = {
    "pool_has_other_definition": (
        "pool {pool!r} already exists with {quota}; use ensure_pool to change it",
        "资源池 {pool!r} 已存在，配额为 {quota}；请用 ensure_pool 修改",
    ),
    "pool_is_used": (
        "pool {pool!r} is in use: {users:; }",
        "资源池 {pool!r} 正在使用：{users:；}",
    ),
    "pool_is_used_hint": (
        (
            "Delete it with drain=True, which saves and evicts what runs and cancels what waits, or end "
            "these first"
        ),
        "加 drain=True 删除：保存并抢占运行中的任务，取消排队的任务；或先结束这些任务",
    ),
    "pool_name_taken": (
        (
            "pool {pool!r} cannot be renamed to {name!r}, which is the name of another pool; choose "
            "another name, or delete that pool first"
        ),
        "资源池 {pool!r} 不能改名为 {name!r}，该名称属于另一个资源池；请换一个名称，或先删除那个资源池",
    ),
    "cohort_above_itself": (
        (
            "cohort {cohort!r} cannot be in {parent!r}, which is itself in it: {above: in }; choose "
            "another parent, or give one of these parent=None first"
        ),
        (
            "共享组 {cohort!r} 不能放在 {parent!r} 中，因为后者就在它里面：{above: < }；请换一个上级，"
            "或先给其中一个设置 parent=None"
        ),
    ),
    "cohort_is_used": (
        "cohort {cohort!r} is in use: {members: and }",
        "共享组 {cohort!r} 正在使用：{members:；}",
    ),
    "cohort_is_used_hint": (
        "Give these another cohort or parent, or none, or delete them first",
        "先把它们移到别的共享组，或移出共享组，或删除它们",
    ),
    "pool_in_it": ("pool {names:, }{more} is in it", "其中有资源池 {names:、}{more}"),
    "pools_in_it": ("pools {names:, }{more} are in it", "其中有资源池 {names:、}{more}"),
    "cohort_in_it": ("cohort {names:, }{more} is in it", "其中有共享组 {names:、}{more}"),
    "cohorts_in_it": ("cohorts {names:, }{more} are in it", "其中有共享组 {names:、}{more}"),
    "no_cohort": (
        "there is no cohort {cohort!r}{near}; cohorts are: {cohorts}. Create it with ensure_cohort",
        "没有共享组 {cohort!r}{near}；现有共享组：{cohorts}。请用 ensure_cohort 创建",
    ),
    "no_parent_cohort": (
        (
            "there is no cohort {cohort!r} to be the parent of {name!r}{near}; cohorts are: {cohorts}. "
            "Create it with ensure_cohort first"
        ),
        (
            "没有可作为 {name!r} 上级的共享组 {cohort!r}{near}；现有共享组：{cohorts}。请先用 "
            "ensure_cohort 创建"
        ),
    ),
    "cohort_has_other_definition": (
        "there is a cohort {cohort!r} already; use ensure_cohort to change it",
        "共享组 {cohort!r} 已存在；请用 ensure_cohort 修改",
    ),
    "cohort_name_taken": (
        "there is a cohort {cohort!r} already; choose another name, or delete that cohort first",
        "共享组 {cohort!r} 已存在；请换一个名称，或先删除那个共享组",
    ),
}
_NODES: Mapping[str, tuple[str, str]] = {
    "no_node": (
        "there is no node {node!r}; nodes are: {nodes}",
        "没有节点 {node!r}；现有节点：{nodes}",
    ),
    "node_is_drained": (
        "node {node!r} is drained; call undrain_node to open it again",
        "节点 {node!r} 正在排空；用 undrain_node 结束排空",
    ),
    "node_in_window": (
        "node {node!r} is in maintenance window {window!r}; call delete_window to open it again",
        "节点 {node!r} 处于维护窗口 {window!r}；用 delete_window 删除该窗口后节点恢复可用",
    ),
    "no_window": (
        "there is no maintenance window {window!r}{near}",
        "没有维护窗口 {window!r}{near}",
    ),
    "window_differs": (
        "there is a maintenance window {window!r} that differs; replace or delete it, or choose another name",
        "已有一个不同的维护窗口 {window!r}；请替换或删除它，或换一个名称",
    ),
    "window_is_over": (
        "maintenance window {window!r} would be over already; give a start whose end is in the future",
        "维护窗口 {window!r} 已经结束；请给出结束时间在将来的开始时间",
    ),
    "windows_at_limit": (
        "there are {most} maintenance windows already; delete some",
        "已有 {most} 个维护窗口；请先删除一些",
    ),
    "several_nodes": (
        "node {node!r} may be {nodes}; give its name or more of the id",
        "节点 {node!r} 可能是 {nodes}；请写出它的名称，或 ID 的更多字符",
    ),
    "drain_of_ray": (
        "Ray drains node {node!r}; a drain by Ray cannot be taken back",
        "节点 {node!r} 由 Ray 排空；Ray 的排空不能撤回",
    ),
}
_AGENTS: Mapping[str, tuple[str, str]] = {
    "agent_ends": (
        "agent {agent!r} is being ended ({why}); choose another",
        "Agent {agent!r} 正在结束（{why:code}）；请换一个",
    ),
    "member_of_gang": (
        "{agent!r} is a member of gang {gang!r}, which ends as one; delete {gang!r}",
        "{agent!r} 是任务组 {gang!r} 的成员，任务组须整体结束；请删除 {gang!r}",
    ),
    "no_agent_on_record": (
        "there is no agent {agent!r}, and none of the last {count} had this name",
        "没有 Agent {agent!r}，最近的 {count} 个中也没有这个名称",
    ),
    "no_agent": ("there is no agent {agent!r}", "没有 Agent {agent!r}"),
    "agent_does_not_run": (
        "agent {agent!r} is {state:code}; only a running one is preempted",
        "Agent {agent!r}：{state:code}；只有运行中的才能抢占",
    ),
    "agent_not_lost": (
        "agent {agent!r} is not among the lost ones",
        "Agent {agent!r} 不在丢失的 Agent 之中",
    ),
    "lease_lost_groups": (
        "lease {lease!r} lost its placement groups; its holder asks for another",
        "租约 {lease!r} 的占位组已丢失；由持有者重新申请",
    ),
    "runner_lost": (
        (
            "the runner of job {job!r} was lost after its task had been evicted; restore or submit the "
            "task to run it again"
        ),
        "作业 {job!r} 的任务被抢占之后，运行它的进程丢失；恢复或重新提交该任务即可再次运行",
    ),
    "member_lost": (
        "agent {agent!r} was lost after the member of the array that it ran had ended",
        "Agent {agent!r} 在其数组成员结束之后丢失，不再重建",
    ),
    "references_within": (
        "agent {agent!r} had object references within its arguments and cannot be rebuilt",
        "Agent {agent!r} 的参数中有对象引用，无法重建",
    ),
}
_TASKS: Mapping[str, tuple[str, str]] = {
    "other_content": (
        (
            "another request was made with this key: a key is for one request and its repetitions; give "
            "another key, or what was given with this one"
        ),
        "这个键已用于另一个请求：一个键只用于一个请求及其重试；请换一个键，或提交与原来相同的内容",
    ),
    "only_running_preempted": (
        "task {task!r} is {state:code}; only a running one is preempted",
        "任务 {task!r}：{state:code}；只有运行中的才能抢占",
    ),
    "limit_fixed": (
        "task {task!r} is {state:code}, so its limit cannot be changed",
        "任务 {task!r}：{state:code}，不能再修改时限",
    ),
    "only_shorter": (
        (
            "task {task!r} may run for {limit:span}; its submitter may shorten that, and only an operator "
            "lengthens it"
        ),
        "任务 {task!r} 最多运行 {limit:span}；提交者只能缩短，延长须由运维操作",
    ),
    "is_preempted": (
        "task {task!r} is being preempted; its state is kept",
        "任务 {task!r} 正在被抢占；它的状态会保留",
    ),
    "only_waits": (
        "task {task!r} does not run: it waits in the queue",
        "任务 {task!r} 没有在运行：它在排队",
    ),
    "only_waits_hint": ("cancel_task({task!r}) removes it", "用 cancel_task({task!r}) 取消它"),
    "does_not_run": (
        "no task {task!r} is running; it has ended or was never registered",
        "没有运行中的任务 {task!r}；它已结束，或从未登记",
    ),
    "no_task_runs": ("no task {task!r} is running{further}", "没有运行中的任务 {task!r}{further}"),
    "on_agent": (" on agent {agent!r}", "（在 Agent {agent!r} 上）"),
    "nor_agent": (", and there is no agent of that name", "，也没有这个名称的 Agent"),
    "no_task_lives": (
        "there is no task {task!r}; it has ended or was never submitted",
        "没有任务 {task!r}；它已结束，或从未提交",
    ),
    "no_member_waits": (
        "no member that is meant by {members!r} waits in the queue: they run or have ended",
        "{members!r} 所指的成员都不在队列中：它们在运行，或已结束",
    ),
    "lease_has_ended": (
        "lease {lease!r} has ended ({why:code})",
        "租约 {lease!r} 已结束（{why:code}）",
    ),
    "no_lease": (
        "there is no lease {lease!r}: it was never requested, or it ended long ago",
        "没有租约 {lease!r}：从未申请过，或早已结束",
    ),
    "request_failed": (
        "the scheduler failed at this request: {error}; its log says where",
        "调度器处理这个请求时出错：{error}；详见它的日志",
    ),
    "no_task": ("there is no task {task!r}", "没有任务 {task!r}"),
    "cancelled_in_queue": (
        "task {task!r} was cancelled while it waited in the queue",
        "任务 {task!r} 在排队时被取消",
    ),
    "no_array_on_record": (
        (
            "there is no array {array!r}{near}: it was never submitted, is a single task, or ended so "
            "long ago that it is forgotten"
        ),
        "没有数组 {array!r}{near}：它从未提交过，是单个任务，或结束太久，已没有记录",
    ),
    "no_task_on_record": (
        (
            "there is no task {task!r}: it was never submitted, its submission was refused, or it ended "
            "before the last {count:,} tasks that have ended"
        ),
        "没有任务 {task!r}：它从未提交过，提交被拒绝，或在最近结束的 {count:,} 个任务之前就已结束",
    ),
    "not_resubmittable_by_us": (
        (
            "task {task!r} was not submitted through ScheduleMesh (or its preemption is no longer on "
            "record) and its pool has no restorer, so there is no way to start it again"
        ),
        (
            "任务 {task!r} 不是通过 ScheduleMesh 提交的（或已没有它被抢占的记录），"
            "所在资源池也没有恢复函数，无法再次启动"
        ),
    ),
}
_RESULTS: Mapping[str, tuple[str, str]] = {
    "no_result_yet": (
        "task {task!r} has no result yet: it is {state:code}",
        "任务 {task!r} 还没有结果：{state:code}",
    ),
    "no_result_yet_hint": (
        "wait([{task!r}]) returns when it has ended",
        "wait([{task!r}]) 在它结束时返回",
    ),
    "result_not_kept": (
        "the result of task {task!r} is no longer kept",
        "任务 {task!r} 的结果已不再保留",
    ),
    "ended_without_result": (
        "task {task!r} has no result: it was {state:code}{why}{cause}",
        "任务 {task!r} 没有结果：{state:code}{why}{cause}",
    ),
    "ended_because": (" ({reason:code})", "（{reason:code}）"),
    "ended_with_error": (". {error}", "。{error}"),
    "history_unreadable": ("the history cannot be read: {why}", "无法读取历史：{why}"),
    "history_is_off": (
        "it is switched off (HistorySettings.enabled)",
        "它已关闭（HistorySettings.enabled）",
    ),
}
_SAVED_STATES: Mapping[str, tuple[str, str]] = {
    "was_not_saved": ("task {task!r} was not saved: {why}", "任务 {task!r} 的状态没有保存：{why}"),
    "task_has_references": (
        "task {task!r} had object references within its arguments and cannot be rebuilt",
        "任务 {task!r} 的参数中有对象引用，无法重建",
    ),
    "is_still_preempted": (
        (
            "task {task!r} is still being preempted, and can be restored when its agent {agent!r} has "
            "ended"
        ),
        "任务 {task!r} 仍在被抢占；它的 Agent {agent!r} 结束后才能恢复",
    ),
    "is_still_preempted_hint": (
        "call restore_task again in a moment",
        "请稍后再次调用 restore_task",
    ),
    "no_state_while": (
        "task {task!r} does not run (it is {state:code}), so there is no state to save",
        "任务 {task!r} 没有在运行（{state:code}），没有可保存的状态",
    ),
    "save_when_it_runs": ("save it again when it runs", "等它运行后再保存"),
    "saved_at_eviction": (
        "its state is saved before its agent ends, for its next start",
        "它的状态会在 Agent 结束前保存，供下次启动使用",
    ),
    "saved_before": (
        "get_saved_state({task!r}) returns what was saved of it, if anything was",
        "如保存过，可用 get_saved_state({task!r}) 取得",
    ),
    "nothing_to_save": (
        "task {task!r} is not running, so there is no state to save",
        "任务 {task!r} 没有在运行，没有可保存的状态",
    ),
    "no_saved_state": (
        (
            "no saved state of task {task!r}: it has not been saved, its saving failed (see save_error in "
            "list_preemptions), or its state was deleted"
        ),
        (
            "没有任务 {task!r} 的已保存状态：从未保存过，保存失败（见 list_preemptions 的 save_error），"
            "或状态已删除"
        ),
    ),
    "no_state_of_eviction": (
        "no state of task {task!r} is stored: when it was evicted, {why}",
        "没有任务 {task!r} 的状态：被抢占时，{why}",
    ),
    "no_state_of_eviction_hint": (
        "list_preemptions has the record of that eviction",
        "这次抢占的记录见 list_preemptions",
    ),
    "restorer_failed": (
        "the restorer of pool {pool!r} failed for task {task!r}: {why}",
        "资源池 {pool!r} 的恢复函数在恢复任务 {task!r} 时失败：{why}",
    ),
}
_TOKENS: Mapping[str, tuple[str, str]] = {
    "token_is_valid": (
        "there is a token {token!r} already; rotate it, or revoke it first",
        "令牌 {token!r} 已存在；请轮换它，或先吊销",
    ),
    "secret_taken": (
        "token {token!r} has this secret; every token has one of its own",
        "令牌 {token!r} 已使用这个密钥；每个令牌须有自己的密钥",
    ),
    "most_tokens": (
        (
            "there are {count:,} tokens, which is the most; revoke those that are not used, also those "
            "that have expired"
        ),
        "令牌已达上限 {count:,} 个；请吊销不用的和已过期的",
    ),
    "only_operator": (
        "token {token!r} is the only one of an operator that does not expire; issue another one first",
        "令牌 {token!r} 是唯一不过期的运维令牌；请先签发另一个",
    ),
    "no_token": (
        "there is no token {token!r}; there are {tokens}",
        "没有令牌 {token!r}；现有：{tokens}",
    ),
    "none": ("none", "无"),
}

CHANGES: Mapping[str, tuple[str, str]] = {
    **_POOLS,
    **_NODES,
    **_AGENTS,
    **_TASKS,
    **_RESULTS,
    **_SAVED_STATES,
    **_TOKENS,
}
