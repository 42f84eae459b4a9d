"""What the engine's explanations say: why a task waits, runs, was evicted or has ended."""

from __future__ import annotations

from collections.abc import Mapping

_ARRAYS: Mapping[str, tuple[str, str]] = {
    "array_members": ("array {array!r}: {members}", "数组 {array!r}：{members}"),
    "members": ("of {size:,} members {counts:, }", "共 {size:,} 个成员，{counts:、}"),
    "members_wait": ("{count:,} wait", "{count:,} 个等待"),
    "members_run": ("{count:,} run", "{count:,} 个运行"),
    "members_ended": ("{count:,} {state:code}{which}", "{count:,} 个{state:code}{which}"),
    "array_is_full": (
        "{running} members of array {array!r} run, and at most {most} may at once",
        "数组 {array!r} 有 {running} 个成员在运行，最多同时运行 {most} 个",
    ),
    "array_is_full_hint": (
        "another one starts when one of them has ended",
        "其中一个结束后，下一个才会启动",
    ),
}
_DEPENDENCIES: Mapping[str, tuple[str, str]] = {
    "waits_for_tasks": ("it waits for {tasks:, for }{more}", "它在等{tasks:；}{more}"),
    "and_for_others": (", and for {count} others", "，以及另外 {count} 个任务"),
    "awaited_task": ("task {task!r} to {end} ({standing})", "任务 {task!r} {end}（{standing}）"),
    "to_complete": ("complete", "完成"),
    "to_end": ("end", "结束"),
    "to_fail": ("fail or be cancelled", "失败或被取消"),
    "it_is": ("it is {state:code}", "{state:code}"),
    "it_waits_for_others": ("it waits for others itself", "它自己也在等别的任务"),
    "it_waits_in_queue": ("it waits in the queue", "正在排队"),
    "waits_for_tasks_hint": (
        (
            "it takes its place in the order when all of them have ended as they have to, and is "
            "cancelled when one ends otherwise"
        ),
        "它们都按要求结束后，它才参与排序；其中一个没有按要求结束，它就被取消",
    ),
    "cancelled_next": ("it is cancelled next: {why}", "它即将被取消：{why}"),
    "dependency_unmet": (
        "task {task!r}, which had to {end} before it starts, has ended as {state:code}",
        "任务 {task!r} 须先{end}，它才能启动，但该任务的结局是：{state:code}",
    ),
}
_ESTIMATES: Mapping[str, tuple[str, str]] = {
    "start_impossible": ("as things are it cannot start at all", "按现状它根本无法启动"),
    "start_members": (
        "it starts when the members of its last attempt have ended",
        "上一次运行的成员结束后即可启动",
    ),
    "member_ends": (
        "agent {agent!r}, of its last attempt, is still being saved or stopped",
        "上一次运行的 agent {agent!r} 仍在保存状态或停止",
    ),
    "start_held": ("it is held", "它被挂起"),
    "start_array_full": (
        "as many members of its array run as may at once",
        "所在数组同时运行的成员已达上限",
    ),
    "start_depends": (
        "nobody knows when the tasks that it starts after have ended",
        "无法知道它依赖的任务何时结束",
    ),
    "start_owner_limit": ("it waits for tasks of its owner to end", "要等同一负责人的任务结束"),
    "start_behind_too_many": (
        "the tasks that come before it ask for more than its pool has at once",
        "排在它前面的任务申请的总量，超过资源池一次能提供的量",
    ),
    "start_by_borrowing": (
        "when its cohort has idle quota to borrow is not estimated",
        "共享组何时有空闲配额可借，不作估计",
    ),
    "start_no_durations": (
        "tasks that hold what is short have no estimated_duration",
        "占用所缺资源的任务没有声明 estimated_duration",
    ),
    "start_no_durations_overdue": (
        "tasks that hold what is short have no estimated_duration, or have outlived it for long",
        "占用所缺资源的任务没有声明 estimated_duration，或早已超过",
    ),
}
_EVICTIONS: Mapping[str, tuple[str, str]] = {
    "run_longer": (
        (
            "with on_time_limit='requeue' it starts again by itself from its saved state; an operator can "
            "let a running task run longer with set_time_limit"
        ),
        (
            "设置 on_time_limit='requeue' 后，它会从保存的状态自动重新运行；运维可以用 set_time_limit "
            "延长运行中任务的时限"
        ),
    ),
    "resubmit_for_longer": (
        "submit it again with another max_run_s; {hint}",
        "换一个 max_run_s 重新提交；{hint}",
    ),
    "resubmit_for_idle": (
        "submit it again with another idle_s if its GPUs may be idle for longer",
        "如果它的 GPU 可以空闲更久，换一个 idle_s 重新提交",
    ),
    "was_idle": (
        "its GPUs were idle for longer than its idle_s allows, though it was warned",
        "它的 GPU 空闲超过了 idle_s 允许的时间，此前已提醒过",
    ),
    "had_run": (
        "it had run for as long as its max_run_s allows",
        "它已运行到 max_run_s 允许的时长",
    ),
    "had_run_for": (
        "it had run for {limit:span}, as long as its max_run_s allows",
        "它已运行 {limit:span}，达到 max_run_s 允许的时长",
    ),
    "two_parts": ("{first}; {second}", "{first}；{second}"),
    "evictor_task": (
        "task {task!r}{owner} in pool {pool!r}",
        "资源池 {pool!r} 的任务 {task!r}{owner}",
    ),
    "evictor_agent": (
        "agent {agent!r}{owner} in pool {pool!r}",
        "资源池 {pool!r} 的 Agent {agent!r}{owner}",
    ),
    "of_owner": (" of {owner}", "（负责人 {owner}）"),
    "evicted_for": (
        "it was evicted for {evictor} ({rule}{score}); {saved}",
        "它被抢占，资源让给{evictor}，依据：{rule:code}{score}；{saved}",
    ),
    "evicted": (
        "it was evicted ({rule}{score}); {saved}",
        "它被抢占，依据：{rule:code}{score}；{saved}",
    ),
    "not_queued_again": ("{why}; it does not wait in the queue", "{why}；它没有重新排队"),
    "score": (", score {score:.4g}", "，得分 {score:.4g}"),
    "idle_victim": (", first among victims as its GPUs were idle", "，因其 GPU 空闲而优先被抢占"),
    "for_evictor": (
        " for {evictor} ({rule}{score}{idle})",
        "，资源让给{evictor}，依据：{rule:code}{score}{idle}",
    ),
    "by_cause": (" {cause} ({rule})", "，{cause}（{rule:code}）"),
    "state_not_saved": ("its state was not saved: {error}", "它的状态没有保存：{error}"),
    "state_stored": ("its state is stored", "它的状态已保存"),
    "no_state_stored": ("no state of it is stored", "没有保存它的状态"),
    "last_state_stored": ("its last saved state is stored", "最近一次保存的状态还在"),
}
_ORDER: Mapping[str, tuple[str, str]] = {
    "order_number": (
        "the position of its first submission among all; the lower comes first",
        "首次提交的序号，小的在前",
    ),
    "order_not_moved": ("not moved to the front", "没有移到队首"),
    "order_promoted": (
        "promoted, as it has waited for {wait:span}",
        "等待已达 {wait:span}，自动提前",
    ),
    "order_moved": (
        "moved to the front; whoever was moved last comes first",
        "已移到队首；最后移动的在最前",
    ),
    "order_promoted_later": (
        "not moved to the front; promoted after {wait:span} of waiting",
        "没有移到队首；等待满 {wait:span} 后自动提前",
    ),
    "order_raised": (
        "; its weight counts {factor:.3g} times, for its wait",
        "；因等待已久，权重按 {factor:.3g} 倍计",
    ),
    "order_pool_use": (
        "the part of all quota that pool {pool!r} uses, by its weight{raised}",
        "资源池 {pool!r} 占全部配额的比例，按权重折算{raised}",
    ),
    "order_pool_share": (
        "what pool {pool!r} has borrowed of its cohorts, by its weight{raised}",
        "资源池 {pool!r} 从共享组借用的配额，按权重折算{raised}",
    ),
    "order_owner_share": (
        "what {owner} has used of pool {pool!r}",
        "{owner}在资源池 {pool!r} 中的用量",
    ),
    "order_unknown": ("not known", "未知"),
    "order_remaining": ("{remaining:span} to run", "还需运行 {remaining:span}"),
    "order_remaining_service": (
        "GPU-seconds: {remaining:span} to run, times its GPUs",
        "GPU 秒：还需运行 {remaining:span}，乘以 GPU 数",
    ),
    "order_level": (
        "{hours:.3g} GPU-hours used; the lower level comes first",
        "已用 {hours:.3g} GPU 小时；级别低的在前",
    ),
    "order_size": ("GPUs; the fewer come first", "GPU 数，少的在前"),
    "order_class": ("class {name}", "等级 {name}"),
    "order_age": (
        "{rate:g} for each hour, {wait:span} so far; added to the priority",
        "每小时 {rate:g}，已等待 {wait:span}；计入优先级",
    ),
    "owner": ("owner {owner!r}", "负责人 {owner!r} "),
    "no_owner": ("the owner of tasks without one", "未指定负责人的任务"),
    "behind_other_owner": (
        "behind {other}, who has used less of pool {pool!r}: {least:.1%}, and {owner} {share:.1%}",
        "排在 {other} 之后，其在资源池 {pool!r} 中用得更少：{least:.1%}，而{owner}为 {share:.1%}",
    ),
    "behind_other_owner_hint": (
        "it comes first when that has changed; move_to_front({task!r}) puts it first",
        "用量的先后变化后就轮到它；move_to_front({task!r}) 可把它移到队首",
    ),
}
_PAST: Mapping[str, tuple[str, str]] = {
    "code_means": ("{code:meaning}", "{code:meaning}"),
    "resubmit": (
        (
            "submit it again under the same id, or restore it with restore_task; with "
            "on_preempted='requeue' it joins the queue again by itself"
        ),
        "用原来的 ID 重新提交，或用 restore_task 恢复；设置 on_preempted='requeue' 后会自动重新排队",
    ),
    "rebuild": (
        "ensure_agent_health rebuilds lost agents where possible; restore_task restores one task",
        "ensure_agent_health 会尽可能重建丢失的 Agent；restore_task 恢复单个任务",
    ),
    "lease_again": ("request another one with lease()", "用 lease() 重新申请"),
    "exception_kept": (
        "result({task!r}) raises its exception; max_retries runs it again",
        "result({task!r}) 会抛出它的异常；设置 max_retries 可自动重试",
    ),
    "job_log_kept": (
        "job_logs({task!r}) shows what it wrote; max_retries runs it again",
        "用 job_logs({task!r}) 查看它的输出；设置 max_retries 可自动重试",
    ),
    "lease_was_lost": ("lease {agent!r} was lost", "租约 {agent!r} 已丢失"),
    "agent_was_lost": ("its agent {agent!r} was lost", "它的 Agent {agent!r} 已丢失"),
    "nodes_lost": (
        "{count:node|nodes} {nodes:, } {count:was|were} lost, on which {what}",
        "丢失了 {count} 个节点（{nodes:、}），{what}",
    ),
    "agent_ran": ("agent {agent!r} ran", "Agent {agent!r} 当时在其上运行"),
    "gang_ran": ("gang {gang!r} ran", "Gang {gang!r} 当时在其上运行"),
    "lease_had_groups": (
        "lease {lease!r} had placement groups",
        "租约 {lease!r} 的占位组当时在其上",
    ),
    "lease_groups_gone": (
        "the placement groups of lease {lease!r} are gone from Ray",
        "租约 {lease!r} 的占位组在 Ray 中已不存在",
    ),
    "process_died": ("the process of agent {agent!r} {how}", "Agent {agent!r} 的进程：{how}"),
    "gang_process_died": ("a process of gang {gang!r} {how}", "Gang {gang!r} 的一个进程：{how}"),
    "gang_rank_died": (
        "rank {rank} of gang {gang!r} {how}",
        "Gang {gang!r} 的 rank {rank}：{how}",
    ),
    "died_unended": ("died although nobody ended it", "无人结束它，自行退出"),
    "died": ("died", "已退出"),
    "process_of_start_died": ("the agent's process {how}", "Agent 的进程：{how}"),
    "freed_too_little": (
        "what the victims freed was not what had been promised",
        "被抢占任务释放的资源少于约定的量",
    ),
    "start_pool_drained": ("pool {pool!r} is being drained", "资源池 {pool!r} 正在排空"),
    "start_node_drained": ("node {node!r} is being drained", "节点 {node!r} 正在排空"),
    "waits_again": ("it waits in the queue again", "任务重新排队等待"),
    "submit_again": ("submit again", "请重新提交"),
    "starts_lost": (
        "its start was lost with its node {times} times in a row, so this counts as a failure",
        "它的启动已连续 {times} 次随节点丢失，因此计为一次失败",
    ),
    "on_oom_fails": (
        "on_oom is 'fail', so it is not started again",
        "on_oom 为 'fail'，因此不再启动",
    ),
    "pool_allows_no_more": (
        "it had {memory:g} MB, and its pool's quota allows no more",
        "它已有 {memory:g} MB 内存，资源池的配额不允许更多",
    ),
    "allowed_no_more": (
        "it had {memory:g} MB, and oom_max_memory or its pool allows no more",
        "它已有 {memory:g} MB 内存，oom_max_memory 或资源池不允许更多",
    ),
    "was_completed": ("it was completed", "它已完成"),
    "result_kept": (
        "it was completed; result({task!r}) returns what it returned",
        "它已完成；result({task!r}) 返回它的结果",
    ),
    "job_completed": (
        "it was completed; job_logs({task!r}) shows what it wrote",
        "它已完成；用 job_logs({task!r}) 查看它的输出",
    ),
    "result_gone": ("it was completed; its result is no longer kept", "它已完成；结果已不再保留"),
    "no_such_task": (
        "there is no task {task!r}, and none is on record{near}",
        "没有任务 {task!r}，也没有它的记录{near}",
    ),
    "ids_with_spaces": (
        "several tasks are written with spaces between them",
        "多个任务之间用空格隔开",
    ),
    "is_a_pool": (
        (
            "a pool is drained with --pool: `schedulemesh drain --pool {pool}`, and opened again by "
            "`schedulemesh undrain --pool {pool}`"
        ),
        (
            "排空资源池要加 --pool：`schedulemesh drain --pool {pool}`；"
            "用 `schedulemesh undrain --pool {pool}` 结束排空"
        ),
    ),
    "like_ids": ("ids like it: {ids:, }", "相近的 ID：{ids:、}"),
    "near_ids": ("; near ids: {ids:, }", "；相近的 ID：{ids:、}"),
    "no_such_task_hint": (
        "list_tasks lists the tasks there are; of those that have ended only the last are on record",
        "list_tasks 列出现有的任务；已结束的只保留最近一部分记录",
    ),
}
_PRESENT: Mapping[str, tuple[str, str]] = {
    "agent_terminated": (
        "its agent {agent!r} is being terminated{why}",
        "它的 Agent {agent!r} 正在结束{why}",
    ),
    "colon": (": {what}", "：{what}"),
    "runs": (
        "it runs{where} in agent {agent!r} for {ran:span}{rest}{idle}{ends}",
        "它{where}以 Agent {agent!r} 运行了 {ran:span}{rest}{idle}{ends}",
    ),
    "on_nodes": (" on {nodes}", "在{nodes}上"),
    "remaining_measured": (
        "; by the progress that it reports {remaining:span} are left",
        "；按它上报的进度，还剩 {remaining:span}",
    ),
    "longer_than_estimated": (
        ", longer than the {estimated:span} estimated",
        "，已超过预计的 {estimated:span}",
    ),
    "remaining_estimated": (
        "; {remaining:span} of its estimated duration are left",
        "；预计还剩 {remaining:span}",
    ),
    "idle_preferred": (
        "; its GPUs have been idle for {idle:span}, so it is preferred as a victim",
        "；它的 GPU 已空闲 {idle:span}，会优先被抢占",
    ),
    "pool_ends": (
        "; its pool is ending, so it is evicted unless it ends before, and does not wait again",
        "；它的资源池正在删除，如果它没有先结束，就会被抢占，且不再排队",
    ),
    "pool_ends_within": (
        (
            "; its pool is ending, so it is evicted within {time:span} unless it ends before, and does "
            "not wait again"
        ),
        "；它的资源池正在删除，{time:span}内没有结束就会被抢占，且不再排队",
    ),
    "process_starts": (
        "the process of its agent {agent!r} is being started{since}",
        "它的 Agent {agent!r} 的进程正在启动{since}",
    ),
    "since": (", since {time:span}", "，已 {time:span}"),
    "starts_when_free": (
        "it starts as soon as its resources are free: it waits for {waits: and for }",
        "资源一空出来它就启动：它在等{waits:，以及}",
    ),
    "to_be_evicted": ("{tasks} to be evicted", "{tasks}被抢占"),
    "groups_to_change": ("{groups} to be created or removed", "{groups}创建或删除完毕"),
    "leaving_task": ("{task}, {why}", "{task}（{why}）"),
    "which_is_stopped": ("which is being stopped", "正在停止"),
    "which_is_evicted": ("which is being evicted{evictor}", "正在被抢占{evictor}"),
    "is_evicted": (
        "it is being evicted{evictor}{saved}; after that it {after}",
        "它正在被抢占{evictor}{saved}；之后{after}",
    ),
    "joins_queue_again": ("joins the queue again", "会重新排队"),
    "not_run_again": ("is not run again by itself", "不会自动重新运行"),
    "and_not_saved": ("; its state was not saved: {error}", "；它的状态没有保存：{error}"),
    "requeue_hint": (
        "submit it with on_preempted='requeue' to have it run again by itself",
        "提交时设置 on_preempted='requeue'，被抢占后就会自动重新运行",
    ),
    "is_saved_then": ("{limit}; it is being saved, {after}", "{limit}；正在保存状态，{after}"),
    "then_it_queues": ("then it joins the queue again", "随后重新排队"),
    "then_it_ends": ("then it ends", "随后结束"),
    "named_task": ("task {names}", "任务 {names} "),
    "named_tasks": ("tasks {names}", "任务 {names} "),
    "named_node": ("node {names}", "节点 {names} "),
    "named_nodes": ("nodes {names}", "节点 {names} "),
    "named_group": ("placement group {names}", "占位组 {names} "),
    "named_groups": ("placement groups {names}", "占位组 {names} "),
    "names": ("{names:, }", "{names:、}"),
    "clauses": ("{names:; }", "{names:；}"),
    "names_and_more": ("{names} and {more} more", "{names}（另有 {more} 个）"),
    "start_phase": (
        "{member}{doing} for {seconds:.0f} s, of at most {limit:.0f} s{line}",
        "{member}{doing}，已 {seconds:.0f} 秒，最多 {limit:.0f} 秒{line}",
    ),
    "start_member": ("{name}: ", "{name}："),
    "start_last_line": ("; last line: {line}", "；最后一行输出：{line}"),
    "start_loads": ("its process loads its class and arguments", "进程正在加载类和参数"),
    "start_constructs": ("its constructor runs", "正在执行构造函数"),
    "start_environment": ("Ray sets up its runtime environment", "Ray 正在准备运行环境"),
    "start_process": ("Ray starts its process", "Ray 正在启动进程"),
}
_QUEUED: Mapping[str, tuple[str, str]] = {
    "task_held": (
        "task {task!r} is held, so it does not start whatever is free",
        "任务 {task!r} 被挂起，有资源也不会启动",
    ),
    "task_held_hint": (
        "release_task({task!r}) lets it start",
        "用 release_task({task!r}) 解除挂起",
    ),
    "start_was_lost": (
        "its start was lost with its node{times}; next try in {wait:.3g} s",
        "它的启动随节点丢失{times}；{wait:.3g} 秒后重试",
    ),
    "times_in_a_row": (" {count} times in a row", "，已连续 {count} 次"),
    "tried_again": (
        "it is tried again in {wait:.3g} s, because {why}",
        "{why}，{wait:.3g} 秒后重试",
    ),
    "run_failed": ("its run failed {count:once|# times}", "它已运行失败 {count} 次"),
    "job_log_so_far": (
        "job_logs({task!r}) shows what it wrote",
        "用 job_logs({task!r}) 查看它的输出",
    ),
    "no_room_in_ray": ("its last start found no room in Ray", "上次启动时 Ray 中没有足够的资源"),
    "behind_strict": (
        "{before:# task|# tasks} of pool {pool!r} must start before it: the pool's queue is strict",
        "资源池 {pool!r} 的队列是严格模式（strict），它前面还有 {before} 个任务要先启动",
    ),
    "to_the_front_hint": (
        "move_to_front({task!r}) or a higher priority puts it first",
        "用 move_to_front({task!r}) 或提高优先级，可排到最前",
    ),
    "only_to_the_front_hint": (
        "move_to_front({task!r}) puts it first; a higher priority does not",
        "用 move_to_front({task!r}) 可排到最前；提高优先级则不能",
    ),
    "behind_victims": (
        (
            "{eviction} would make room for it; {before:# task comes|# tasks come} of pool {pool!r} "
            "before it, and nobody is evicted for it while evictions would help one of these, or while it "
            "would delay the start of one{turn}"
        ),
        (
            "{eviction}就能为它腾出资源；但资源池 {pool!r} 中有 {before} 个任务排在前面，"
            "只要抢占能帮到其中一个，或会推迟其中一个的启动，就不会为它抢占{turn}"
        ),
    ),
    "its_turn": ("; it is its turn within about {seconds} s", "；大约 {seconds} 秒内轮到它"),
    "class_loads_first": (
        "{eviction} makes room for it, after its class has loaded in a worker once",
        "{eviction}就能为它腾出资源，但须先在一个进程中成功加载它的类",
    ),
    "reserved_for_others": (
        "{need} is free, but its start would delay those that are reserved for {tasks:, }",
        "{need} 空闲，但它启动会推迟为 {tasks:、} 预留的启动",
    ),
    "reserved_for_others_hint": (
        "an estimated_duration that ends before them, or move_to_front({task!r})",
        "设置在它们之前结束的 estimated_duration，或用 move_to_front({task!r})",
    ),
    "eviction_of_tasks": ("the eviction of {count:# task|# tasks}", "抢占 {count} 个任务"),
    "cancelled_starts": (
        "the cancelled {count:start of # task that borrows|starts of # tasks that borrow}",
        "取消 {count} 个借用配额的启动",
    ),
    "end_of_agent": (
        "the end of agent {agent!r}, which is under way,",
        "等 Agent {agent!r} 结束（已在进行）",
    ),
    "room_for_it": ("there is room for it", "资源足够"),
    "makes_room": ("{eviction} makes room for it", "{eviction}就能为它腾出资源"),
    "next_pass": (
        "{how}; it starts when the queue is served next, within {time}",
        "{how}；下一轮调度就会启动，{time}",
    ),
    "within_seconds": ("seconds", "就在几秒之内"),
    "within_turns": (
        "about {seconds} s: many wait, and they take turns",
        "大约 {seconds} 秒内：排队的很多，要轮流处理",
    ),
    "cancelled_unless": (
        "; it is cancelled in {wait:.3g} s unless that changes (on_impossible is 'cancel')",
        "；若情况不变，{wait:.3g} 秒后自动取消（on_impossible 为 'cancel'）",
    ),
    "larger_node_hint": (
        "it starts when a node that is large enough joins; else cancel it and ask for less",
        "有足够大的节点加入后就会启动；否则取消它，减少申请量",
    ),
    "strict_waits_for_it": (
        "; nothing of its strict pool starts before it",
        "；它所在的资源池是严格模式，它不启动，其他任务也不启动",
    ),
    "other_request_hint": (
        "cancel it and submit it again with a request that its pool can hold, or change the pool",
        "取消后按资源池能容纳的量重新提交，或修改资源池",
    ),
    "others_do_not_wait": ("; those behind it do not wait for it", "；排在后面的任务不会等它"),
}
_SHORTAGE: Mapping[str, tuple[str, str]] = {
    "parts": ("{parts:; }", "{parts:；}"),
    "pool_lacks": (
        "pool {pool!r} lacks {short} of the {need} asked for",
        "资源池 {pool!r} 还差 {short}（申请 {need}）",
    ),
    "quota_free": ("{free} of its {quota} is free", "配额 {quota}，空闲 {free}"),
    "held_by": ("held by {holders:, }", "占用者：{holders:、}"),
    "holder_tasks": ("{tasks: and } ({amount})", "{tasks:、}（{amount}）"),
    "holder_agent": ("agent {agent} ({amount})", "Agent {agent}（{amount}）"),
    "pool_lacks_hint": (
        "it starts when enough of pool {pool!r} is free; resize the pool, or ask for less",
        "资源池 {pool!r} 空出足够配额后就会启动；也可以扩大资源池，或减少申请量",
    ),
    "quota_held_for_others": (
        (
            "{amount} of pool {pool!r} is held for others, after a requested eviction or for a task that "
            "is tried again"
        ),
        "资源池 {pool!r} 的 {amount} 正为其他任务保留：人工抢占之后，或有任务等待重试",
    ),
    "quota_held_for_others_hint": (
        "what is not used is free again in {wait:.0f} s",
        "没有用掉的部分 {wait:.0f} 秒后释放",
    ),
    "lent_quota": (
        "pool {pool!r} has lent {lent} of its quota, or it is held for others: {borrowers:, }{reclaim}",
        "资源池 {pool!r} 的配额中有 {lent} 已借出，或正为其他资源池保留：{borrowers:、}{reclaim}",
    ),
    "loan_reclaimed": (
        (
            "; with that back its own quota covers this task, so borrowers are evicted for it unless a rule "
            "spares them"
        ),
        "；收回后自己的配额就够用，因此除非规则保护借用方，否则会为该任务抢占它们",
    ),
    "loan_not_reclaimed": (
        (
            "; it does not take that back for this task, which would lack {lack} even then: what its own "
            "tasks hold is not on loan"
        ),
        "；不会为该任务收回这部分配额，因为收回后仍差 {lack}：其余由本资源池自己的任务占用",
    ),
    "loan_ends": (
        "a loan ends with the agent that holds it",
        "借用方的 Agent 结束，借出的配额就归还",
    ),
    "loan_hint": (
        "a loan ends with the agent that holds it; a pool of a cohort reclaims its own",
        "借用方的 Agent 结束，借出的配额就归还；共享组中的资源池会收回自己的配额",
    ),
    "cohort_hint": (
        "a larger borrowing_limit, or lending_limit of the others, lets it borrow more",
        "调大它的 borrowing_limit 或其他资源池的 lending_limit，就能借到更多",
    ),
    "external_room": (
        (
            "{node} would have room for {need} without the Ray work that no task claims, which uses "
            "{external} there"
        ),
        "{node} 上有不属于任何任务的 Ray 作业，占用 {external}；没有它，就放得下 {need}",
    ),
    "external_room_hint": (
        "end that work, or run it through the scheduler",
        "结束那些作业，或通过调度器运行它们",
    ),
    "external_room_by": ("{room}: {jobs:, }", "{room}：{jobs:、}"),
    "job_beyond_claim": (
        "job {job!r} holds {amount} more than it claims",
        "作业 {job!r} 比申请的多占 {amount}",
    ),
    "job_beyond_claim_hint": (
        "submit {job!r} with a claim of all that it uses, or cancel it",
        "按实际用量重新提交 {job!r}，或取消它",
    ),
    "nodes_closed": (
        "{nodes} would have room for {need}, but takes no new agents: {why}",
        "{nodes} 放得下 {need}，但不接受新的 Agent：{why}",
    ),
    "node_cordoned": ("it is cordoned", "已封锁"),
    "node_cordoned_hint": (
        "cordon_node({node!r}, cordoned=False) opens it again",
        "用 cordon_node({node!r}, cordoned=False) 解除封锁",
    ),
    "node_drained": ("it is drained", "正在排空"),
    "node_drained_hint": (
        "undrain_node({node!r}) opens it again",
        "用 undrain_node({node!r}) 结束排空",
    ),
    "in_window": (
        ("{nodes} would have room for {need}, but {window} is open there for another {left:span}"),
        "{nodes} 放得下 {need}，但正处于{window}，还有 {left:span}",
    ),
    "maintenance_named": ("maintenance window {name!r}", "维护窗口 {name!r} "),
    "reservation_named": (
        "window {name!r}, which reserves it for tasks {whom},",
        "窗口 {name!r} （为{whom}的任务预留）",
    ),
    "tasks_of_pool": ("of pool {pool!r}", "资源池 {pool!r} "),
    "tasks_of_owner": ("of owner {owner!r}", "负责人 {owner!r} "),
    "tasks_with_label": ("with {label}={value}", "标签 {label}={value} "),
    "in_window_hint": (
        "it starts there when the window is over",
        "窗口结束后就可以在那里启动",
    ),
    "before_window": (
        ("{nodes} would have room for {need}, but {window} opens there in {wait:span}, and {why}"),
        "{nodes} 放得下 {need}，但{window}将在 {wait:span}后开始，而{why}",
    ),
    "over_after": ("this is over after {run:span}", "任务要 {run:span}后才结束"),
    "end_not_known": ("nobody knows when this is over", "任务何时结束未知"),
    "before_window_hint": (
        (
            "it starts there in {wait:span}, when the window is over; a max_run_s or estimated_duration "
            "with which it is over before lets it start now"
        ),
        (
            "窗口在 {wait:span}后结束，之后可以在那里启动；若 max_run_s 或 estimated_duration "
            "表明它在此之前结束，现在就能启动"
        ),
    ),
    "window_ends_it": (
        ("; it is evicted in {wait:span} for window {window!r} of {node}, unless it ends before"),
        "；如果它没有先结束，将在 {wait:span}后因{node}的窗口 {window!r} 被抢占",
    ),
    "ray_drains_node": ("Ray drains it", "Ray 正在排空它"),
    "ray_drains_node_hint": (
        "it starts on another node; add one",
        "它会在别的节点启动；请增加节点",
    ),
    "group_hint": (
        "it starts when a group or the room for one is free; ask for smaller bundles, or add nodes",
        "有空闲的占位组，或有资源新建占位组时就会启动；也可以减小 bundle，或增加节点",
    ),
    "node_hint": (
        "it starts when a node has the room; ask for less, or add a node",
        "有节点放得下时就会启动；也可以减少申请量，或增加节点",
    ),
}

EXPLANATIONS: Mapping[str, tuple[str, str]] = {
    **_ARRAYS,
    **_DEPENDENCIES,
    **_ESTIMATES,
    **_EVICTIONS,
    **_ORDER,
    **_PAST,
    **_PRESENT,
    **_QUEUED,
    **_SHORTAGE,
}
