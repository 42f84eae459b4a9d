"""What refusals say: what was asked for, what is short or allowed, and the next step."""

from __future__ import annotations

from collections.abc import Mapping

_TOPOLOGY: Mapping[str, tuple[str, str]] = {
    "no_such_level": (
        "topology names the level {level!r}{hint}; levels of the policy are: {levels}",
        "topology 写了层级 {level!r}{hint}；策略中的层级：{levels}",
    ),
    "level_is_wider": (
        "topology asks for level {level!r} inside of level {other!r}, which is narrower",
        "topology 要求层级 {level!r} 位于层级 {other!r} 之内，而后者更窄",
    ),
    "uneven_slices": (
        "topology asks for slices of {size}, which do not divide {members} members evenly",
        "topology 要求每片 {size} 个成员，不能整除 {members} 个成员",
    ),
    "topology_of_one": (
        "topology is for gangs, leases and jobs, and this is a single agent",
        "topology 用于任务组、租约和作业，而这是单个 agent",
    ),
    "topology_of_elastic": (
        "topology is for gangs whose members all start together, and this one has min_replicas",
        "topology 用于成员同时启动的任务组，而它设置了 min_replicas",
    ),
    "topology_of_reserved": (
        "topology is for groups that are created for a task, and pool {pool!r} has only reserved ones",
        "topology 用于为任务新建的占位组，而资源池 {pool!r} 只有预留的占位组",
    ),
    "topology_hint": (
        "Change topology, or leave it out; an operator declares levels with topology_levels of the policy",
        "修改或去掉 topology；层级由运维在策略的 topology_levels 中声明",
    ),
    "no_domain": (
        "no {level} has {need} free: the best, {domain}, has {free}",
        "没有一个 {level} 有 {need} 空闲：最多的是 {domain}，有 {free}",
    ),
    "no_domain_of_nodes": (
        "the nodes of no {level} hold {need} as asked for: the best, {domain}, has {free} free in all",
        "没有一个 {level} 的节点能按要求放下 {need}：最多的是 {domain}，合计空闲 {free}",
    ),
    "no_domain_tried": (
        (
            "{trials} ways to divide members that differ among the domains of {level} were tried in vain, "
            "and there are more; equal members are placed wherever they have room"
        ),
        (
            "成员互不相同：把它们分到各个 {level} 的 {trials} 种方式都放不下，其余的没有再试；"
            "成员相同时，只要有空间就能放下"
        ),
    ),
    "no_slices": (
        "there is room for {placed} of {slices} slices of {need}, each in one {level}",
        "{slices} 片（每片 {need}，位于同一个 {level}）中，只有 {placed} 片有空间",
    ),
    "no_slices_at_once": (
        "{slices} slices have no room at once, each in one {level}",
        "{slices} 片不能同时放下，每片须位于同一个 {level}",
    ),
}

_POOLS: Mapping[str, tuple[str, str]] = {
    "no_pool": (
        "there is no pool {pool!r}{hint}; pools are: {pools}. Create it with create_pool or ensure_pool",
        "没有资源池 {pool!r}{hint}；现有资源池：{pools}。可用 create_pool 或 ensure_pool 创建",
    ),
    "did_you_mean": (" (did you mean {name!r}?)", "（是不是 {name!r}？）"),
    "pool_was_renamed": (", which was renamed to {name!r}", "，它已改名为 {name!r}"),
    "none_yet": ("none yet", "还没有"),
    "no_such_pool": ("there is no pool {name!r}{near}", "没有资源池 {name!r}{near}"),
    "no_such_cohort": ("there is no cohort {name!r}{near}", "没有共享组 {name!r}{near}"),
    "no_such_node": ("there is no node {name!r}{near}", "没有节点 {name!r}{near}"),
    "there_are": ("there are: {names:, }", "现有：{names:、}"),
    "listed_by": (
        "`schedulemesh {command}` lists the {count} that there are",
        "现有的 {count} 个见 `schedulemesh {command}`",
    ),
    "names_and_others": ("{names:, } and {count:,} others", "{names:、}等，另有 {count:,} 个"),
    "pool_drains": (
        "pool {pool!r} is drained, so nothing new starts in it",
        "资源池 {pool!r} 正在排空，不再启动新任务",
    ),
    "pool_drains_hint": (
        "Submit it with queue=True to wait, choose another pool, or end the drain with undrain_pool",
        "加 queue=True 提交以排队等待，换一个资源池，或用 undrain_pool 结束排空",
    ),
    "pool_is_deleted": (
        "pool {pool!r} is being deleted, so it takes nothing new",
        "资源池 {pool!r} 正在删除，不再接受新任务",
    ),
    "pool_is_deleted_hint": (
        "Choose another pool, or keep this one with undrain_pool",
        "换一个资源池，或用 undrain_pool 保留它",
    ),
    "priority_outside": (
        "pool {pool!r} permits priorities {limits: }, not {priority:g}",
        "资源池 {pool!r} 允许的优先级：{limits:，}；不允许 {priority:g}",
    ),
    "priority_from": ("from {limit:g}", "不低于 {limit:g}"),
    "priority_up_to": ("up to {limit:g}", "不高于 {limit:g}"),
    "priority_outside_hint": (
        "Choose such a priority, or another pool",
        "在允许范围内选择优先级，或换一个资源池",
    ),
    "no_pool_matches": (
        "no pool that could hold the task matches its pool_selector; pools are: {pools}",
        "没有既放得下该任务、又符合 pool_selector 的资源池；现有资源池：{pools}",
    ),
    "more_than_pool": (
        (
            "the task asks for {need}, but pool {pool!r} has {total} in total{loans}; ask for less or "
            "resize the pool"
        ),
        "任务申请 {need}，而资源池 {pool!r} 总共只有 {total}{loans}；请减少申请量，或扩大资源池",
    ),
    "could_borrow": (
        " and could borrow at most {amount} in cohort {cohort!r}",
        "，在共享组 {cohort!r} 中最多可借 {amount}",
    ),
    "protected_borrows_nothing": (
        " and, as a protected pool, borrows nothing",
        "，并且受保护的资源池不借用配额",
    ),
    "memory_in_bytes": (
        "Memory is given in MB; {bytes:.12g} bytes are {mb:.6g} MB",
        "内存以 MB 为单位；{bytes:.12g} 字节是 {mb:.6g} MB",
    ),
    "no_pool_groups": (
        (
            "pool {pool!r} keeps no placement groups; ensure it with pg_pool_config={{'enable': True, "
            "...}}, or submit without asking for a group or several bundles"
        ),
        (
            "资源池 {pool!r} 没有预建占位组；用 ensure_pool 设置 pg_pool_config={{'enable': True, ...}}，"
            "或提交时不要申请占位组和多个 bundle"
        ),
    ),
    "group_decides_node": (
        (
            "in pool {pool!r} agents run in placement groups; leave out scheduling_strategy and "
            "fallback_strategy"
        ),
        "资源池 {pool!r} 的 Agent 在占位组中运行；请去掉 scheduling_strategy 和 fallback_strategy",
    ),
}
_NODES: Mapping[str, tuple[str, str]] = {
    "with_labels": (" with {labels}", "（标签 {labels}）"),
    "labels_missing_hint": (
        "Ask for labels that nodes have, or add a node that has them",
        "改用节点已有的标签，或增加带有这些标签的节点",
    ),
    "no_node_even_empty": (
        (
            "no node{which} of the cluster as it is now could hold {need}, even empty; the closest of "
            "{count} lacks {short}"
        ),
        "集群现有节点{which}即使空闲也放不下 {need}；{count} 个节点中最接近的还差 {short}",
    ),
    "no_node_has_labels": (
        "no node of the cluster as it is now has {labels}",
        "集群现有节点都没有标签 {labels}",
    ),
    "values_of_label": ("values of {label} are {values:, }", "{label} 现有的值：{values:、}"),
    "no_such_label": ("none has the label {label}", "没有节点带标签 {label}"),
    "more_values": ("others", "其他"),
    "no_such_flavor": (
        "the task asks for {need} on nodes{which}, and pool {pool!r} has no such flavor: {flavors:, }",
        "任务申请{which}节点上的 {need}，而资源池 {pool!r} 没有适用的规格：{flavors:、}",
    ),
    "flavor": ("{name} ({labels})", "{name}（{labels}）"),
    "no_such_flavor_hint": (
        "Change label_selector, or give pool {pool!r} a flavor with such nodes",
        "请修改 label_selector，或为资源池 {pool!r} 增加包含这类节点的规格",
    ),
    "no_alternative": (
        "none of its alternatives can start: {parts:; }",
        "它的所有备选方式都无法启动：{parts:；}",
    ),
    "numbered_alternative": (
        "{number}. ({alternative}): {error}",
        "{number}.（{alternative}）：{error}",
    ),
    "alternative": ("{amount} on {where}", "{amount}，{where}"),
    "pool_default": ("its pool's default", "资源池的默认量"),
    "nodes_with": ("nodes with {labels}", "标签为 {labels} 的节点"),
    "any_node": ("any node", "任意节点"),
    "no_open_node": ("no node{which} takes new agents", "没有节点{which}接受新的 Agent"),
    "no_node_has_room": (
        "no node{which} has room for {need}; the closest, {node}, {lack}{others}",
        "没有节点{which}放得下 {need}；最接近的 {node} {lack}{others}",
    ),
    "lacks": ("lacks {short}", "还差 {short}"),
    "no_device": ("has no GPU device with enough left", "没有余量足够的 GPU"),
    "external_holds": (
        "; Ray work that no task claims holds {amount} there",
        "；那里有不属于任何任务的 Ray 作业占用 {amount}",
    ),
    "group_even_empty": (
        "the cluster as it is now could not hold the placement group {shape}, even empty: {why}",
        "即使空闲，现有集群也放不下占位组 {shape}：{why}",
    ),
    "no_room_beside_reserved": (
        (
            "no node{which} of the cluster as it is now could hold {need} beside the reserved placement "
            "groups of pool {pools:, }, even if nothing else ran: {why}"
        ),
        (
            "即使没有其他任务运行，除去资源池 {pools:、} 的预留占位组，集群现有节点{which}也放不下 {need}："
            "{why}"
        ),
    ),
    "no_room_beside_reserved_hint": (
        (
            "Have pool {pools:, } keep fewer reserved placement groups (high_priority_pg_specs), add a node, "
            "or ask for less"
        ),
        "减少资源池 {pools:、} 的预留占位组（high_priority_pg_specs），或增加节点，或减少申请量",
    ),
    "group_is_made": ("it is being made", "正在创建"),
    "bundle": ("bundle {number} ({need})", "bundle {number}（{need}）"),
    "bundle_lacks": ("{which}: {why}", "{which}：{why}"),
    "no_nodes_yet": ("no node is known yet", "还没有已知的节点"),
    "closest_lacks": (
        "the closest node, {node}, lacks {short}",
        "最接近的节点 {node} 还差 {short}",
    ),
    "closest_no_device": (
        "the closest node, {node}, has no whole GPU left for it",
        "最接近的节点 {node} 没有整块空闲的 GPU",
    ),
    "no_group_free": (
        "pool {pool!r} has no free placement group for {shape}",
        "资源池 {pool!r} 没有适合 {shape} 的空闲占位组",
    ),
    "reserved_not_for_it": (
        "its reserved ones are not for this task",
        "预留的占位组不能给该任务使用",
    ),
    "no_dynamic_groups": ("it makes no dynamic ones", "它不动态创建占位组"),
    "dynamic_limit": (
        "{count} of at most {most} dynamic ones are there",
        "动态占位组已有 {count} 个，最多 {most} 个",
    ),
    "shape": ("{group}{conditions}", "{group}{conditions}"),
    "shape_groups": (" as {count} groups", "、分成 {count} 个组"),
    "shape_labels": (" on nodes with {labels}", "、节点标签 {labels}"),
    "shape_topology": (" with topology {topology}", "、拓扑 {topology}"),
    "shape_same_label": (" on nodes with the same {label!r}", "、各节点的标签 {label!r} 相同"),
    "no_room_for_group": ("a new one has no room: {why}", "新建占位组的资源不足：{why}"),
    "and_no_eviction": ("and no running task may be evicted for it", "也没有可以为它抢占的任务"),
}
_SHORT: Mapping[str, tuple[str, str]] = {
    "no_room": (
        "Insufficient resources and no available preemption candidates: {parts:; }",
        "资源不足，且没有可抢占的任务：{parts:；}",
    ),
    "lent_to_others": (
        "other pools have {lent} of it as a loan, or it is held for them: {pools:, }",
        "其中 {lent} 已借给其他资源池，或正为它们保留：{pools:、}",
    ),
    "pool_amount": ("pool {pool!r} {amount}", "资源池 {pool!r} {amount}"),
    "other_pools": ("others", "其他资源池"),
    "protected_does_not_borrow": (
        "a protected pool does not borrow from its cohort",
        "受保护的资源池不从共享组借用配额",
    ),
    "idle_in_cohort": (
        "cohort {cohort!r} has {idle} idle for it to borrow, and it needs {short}",
        "共享组 {cohort!r} 可借的空闲配额为 {idle}，而它需要 {short}",
    ),
    "idle_in_cohort_and_more": (
        "cohort {cohort!r} has {idle} idle for it to borrow, and it needs {short} more",
        "共享组 {cohort!r} 可借的空闲配额为 {idle}，除此之外它还需要 {short}",
    ),
    "borrowing_limit": (
        "its borrowing_limit is {limit}, of which {used} is used",
        "它的 borrowing_limit 为 {limit}，已用 {used}",
    ),
    "pool_lacks_no_eviction": (
        "pool {pool!r} lacks {short}, and nobody is evicted for this request",
        "资源池 {pool!r} 还差 {short}，而该请求不抢占任何任务",
    ),
    "may_evict_hint": (
        "Ask for less, resize pool {pool!r}, or submit it so that it may evict others",
        "减少申请量，扩大资源池 {pool!r}，或提交时允许它抢占",
    ),
    "default_hint": (
        (
            "It named no resources, so it asks for what pool {pool!r} gives by default: {need}. Name its "
            "resources"
        ),
        "它没有写明资源，所以按资源池 {pool!r} 的默认量申请：{need}。请写明所需资源",
    ),
    "priority_enough": (
        "priority {priority:.12g} would be enough",
        "优先级达到 {priority:.12g} 即可",
    ),
    "tasks_spared": (
        "{count:# running task|# running tasks} cannot be evicted: {rule}",
        "{count} 个运行中的任务不能抢占：{rule:code}",
    ),
    "ways_out": ("{ways:, }", "{ways:，}"),
    "way_priority": (
        "Submit it with priority {priority:.12g} or more, ask for less",
        "以不低于 {priority:.12g} 的优先级提交，减少申请量",
    ),
    "way_less": ("Ask for less", "减少申请量"),
    "way_resize": ("resize pool {pool!r}", "扩大资源池 {pool!r}"),
    "way_node": ("add a node", "增加节点"),
    "way_queue": (
        "or submit it with queue=True, so that it starts when a holder ends",
        "或加 queue=True 提交，等占用者结束后启动",
    ),
    "way_wait": ("or wait until a holder ends", "或等占用者结束"),
    "smaller_bundles": ("Ask for smaller bundles", "减小 bundle"),
    "contested_hint": (
        (
            "End that work or submit it to ScheduleMesh, set evict_despite_external_demand in the policy "
            "to evict all the same"
        ),
        "结束那些作业，或改由 ScheduleMesh 提交；若仍要抢占，在策略中设置 evict_despite_external_demand",
    ),
    "room_was_taken": (
        (
            "an eviction would free {need} on node {node}, but external Ray work got the room of the last "
            "one for this task there, and work that fits there still waits in Ray"
        ),
        (
            "抢占会在节点 {node} 腾出 {need}；但上一次为该任务腾出的资源被其他 Ray 作业占走，而 Ray "
            "中仍有放得下的作业在等"
        ),
    ),
    "room_is_contested": (
        (
            "an eviction would free {need} on node {node}, but work that does not belong to ScheduleMesh "
            "would get it first: {rivals:; }"
        ),
        "抢占会在节点 {node} 腾出 {need}；但不属于 ScheduleMesh 的作业会先拿到：{rivals:；}",
    ),
    "rival": ("{job} waits in Ray for {amount}", "{job}在 Ray 中等待 {amount}"),
    "ray_job": ("Ray job {job}{namespace}", "Ray 作业 {job}{namespace}"),
    "unknown_ray_job": ("a Ray job that is not known yet", "尚未识别的 Ray 作业"),
    "namespace": (" (namespace {namespace!r})", "（命名空间 {namespace!r}）"),
    "more_rivals": ("others wait too", "还有其他作业也在等"),
    "gave_way_to_owner": (
        "it would have borrowed, and gave way to a task of a pool that gets its own quota back",
        "它本要借用配额，现让位给收回自有配额的资源池的任务",
    ),
    "gave_way_to_owner_hint": (
        "submit it again, with queue=True to wait for the quota",
        "请重新提交；加 queue=True 可等待配额",
    ),
    "class_not_loaded_in_time": (
        "the class did not load, so nobody was evicted for it: {why}",
        "类没有按时加载，因此没有为它抢占任何任务：{why}",
    ),
    "class_cannot_be_loaded": (
        "the class cannot be loaded, so nobody was evicted for it: {why}",
        "类无法加载，因此没有为它抢占任何任务：{why}",
    ),
    "already_adopted": (
        "Ray job {job!r} is adopted already, {by}",
        "Ray 作业 {job!r} 已被接管{by}",
    ),
    "by_task": ("as task {tasks:, }", "，任务为 {tasks:、}"),
    "by_ending_task": ("by a task that is ending", "，接管它的任务正在结束"),
    "queue_comes_first": (
        "there is room in pool {pool!r}, but tasks that wait come first",
        "资源池 {pool!r} 有空闲资源，但排队中的任务优先",
    ),
    "evictions_would_delay": (
        "{eviction} would make room for it, but its start would delay those that are reserved for {tasks:, }",
        "{eviction}就能为它腾出资源，但它启动会推迟为 {tasks:、} 预留的启动",
    ),
    "queue_comes_first_hint": (
        "submit it with queue=True, or with a higher priority",
        "加 queue=True 提交，或提高优先级",
    ),
}
_OWNERS: Mapping[str, tuple[str, str]] = {
    "owner_at_limit": (
        (
            "owner limit: {owner} holds {used: and } in pool {pool!r}, and {permitted: and } "
            "{amount:is|are} permitted; {need}"
        ),
        "负责人限额：{owner}在资源池 {pool!r} 中已占用 {used:、}，允许的{amount:|}是 {permitted:、}；{need}",
    ),
    "owner_at_limit_hint": (
        (
            "{submit}it starts when tasks of the same owner{waits} have ended, and others do not wait for "
            "it; an operator raises the limit with owner_limits of pool {pool!r}"
        ),
        (
            "{submit}同一负责人的任务{waits}结束后它就会启动，其他人的任务不必等它；运维可用资源池 "
            "{pool!r} 的 owner_limits 提高限额"
        ),
    ),
    "with_queue": ("submit it with queue=True: ", "加 queue=True 提交："),
    "such_as": (", such as {tasks:, },", "（例如 {tasks:、}）"),
    "beyond_owner": (
        "owner limit: {permitted: and } {amount:is|are} permitted to {owner} in pool {pool!r}; {need}",
        "负责人限额：{owner}在资源池 {pool!r} 中允许的{amount:|}是 {permitted:、}；{need}",
    ),
    "beyond_owner_hint": (
        "ask for less, or have an operator raise owner_limits of pool {pool!r}",
        "减少申请量，或请运维提高资源池 {pool!r} 的 owner_limits",
    ),
    "amount_of": ("{amount:g} {kind}", "{amount:g} {kind}"),
    "memory_of": ("{amount:g} MB of memory", "{amount:g} MB 内存"),
    "running_tasks": ("{count:# running task|# running tasks}", "{count} 个运行中的任务"),
    "task_asks": ("the task asks for {amounts: and }", "该任务申请 {amounts:、}"),
    "task_is_one_more": ("the task would be one more", "该任务会再多一个"),
    "owner_queue": (
        (
            "{owner} has {count:# task|# tasks} in the queue of pool {pool!r}, and owner_limits permits "
            "{most}{further}"
        ),
        "{owner}在资源池 {pool!r} 的队列中已有 {count} 个任务，owner_limits 允许 {most} 个{further}",
    ),
    "array_has": ("; the array has {count:,} members", "；该数组有 {count:,} 个成员"),
    "owner_queue_hint": (
        (
            "submit it when one of them has started, cancel one, or have an operator raise queued in "
            "owner_limits of pool {pool!r}"
        ),
        "等其中一个启动后再提交，取消一个，或请运维提高资源池 {pool!r} 的 owner_limits 中的 queued",
    ),
    "budget_used_up": (
        (
            "budget spent: {whose} has used {used:,.6g} of {budget:,.6g} GPU-hours of {period}, which "
            "ends on {turns}"
        ),
        "预算已用完：{whose}{period}的 {budget:,.6g} GPU 小时已用 {used:,.6g}，本期到 {turns} 结束",
    ),
    "pool_itself": ("pool {pool!r}", "资源池 {pool!r} "),
    "owner_in_pool": ("{owner} in pool {pool!r}", "{owner}在资源池 {pool!r} 中"),
    "this_day": ("this day", "今天"),
    "this_week": ("this week", "本周"),
    "this_month": ("this month", "本月"),
    "budget_hint": (
        "{submit}it starts when the period turns; an operator raises {field} of pool {pool!r}",
        "{submit}到下一个周期就会启动；运维可以调大资源池 {pool!r} 的 {field}",
    ),
    "run_too_long": (
        "max_run_s is {run:span}, and tasks of pool {pool!r} may run for at most {most:span}",
        "max_run_s 为 {run:span}，而资源池 {pool!r} 的任务最多运行 {most:span}",
    ),
    "run_too_long_hint": (
        (
            "ask for at most {most:span}; with on_time_limit='requeue' it then starts again from its "
            "saved state. An operator can raise max_run_s of the pool"
        ),
        (
            "最多申请 {most:span}；设置 on_time_limit='requeue' 后会从保存的状态继续。"
            "运维可以调大资源池的 max_run_s"
        ),
    ),
}
_TASKS: Mapping[str, tuple[str, str]] = {
    "task_exists": (
        "task {task!r} already exists, on agent {agent!r}; complete it first or choose another id",
        "任务 {task!r} 已存在，在 Agent {agent!r} 上；请先结束它，或换一个 ID",
    ),
    "task_is_queued": (
        "task {task!r} already exists, in the queue of pool {pool!r}; cancel it first or choose another id",
        "任务 {task!r} 已在资源池 {pool!r} 的队列中；请先取消它，或换一个 ID",
    ),
    "parent_has_ended": (
        "task {parent!r}, from inside which {task!r} was submitted, has ended or waits to run again",
        "{task!r} 是在任务 {parent!r} 中提交的，而后者已结束，或在等待重新运行",
    ),
    "parent_has_ended_hint": (
        "submit it with detached=True if it is to outlive that task",
        "如果它不随该任务结束，加 detached=True 提交",
    ),
    "agent_exists": (
        "agent {agent!r} already exists; delete it first or choose another name",
        "Agent {agent!r} 已存在；请先删除它，或换一个名称",
    ),
    "agent_will_exist": (
        (
            "agent {agent!r} will be that of task {task!r}, which waits in the queue; cancel it first or "
            "choose another name"
        ),
        "Agent {agent!r} 已留给排队中的任务 {task!r}；请先取消它，或换一个名称",
    ),
    "after_needs_queue": (
        "task {task!r} starts after others, and only a task in the queue waits for them",
        "任务 {task!r} 依赖其他任务，只有排队的任务才能等待它们",
    ),
    "after_needs_queue_hint": ("submit it with queue=True", "加 queue=True 提交"),
    "after_itself": (
        "task {task!r} would start after itself; name other tasks in after",
        "任务 {task!r} 依赖它自己；请在 after 中写其他任务",
    ),
    "after_unknown": (
        (
            "there is no task {other!r}{near} for {task!r} to start after; it was never submitted, or "
            "ended so long ago that it is forgotten"
        ),
        "没有 {task!r} 所依赖的任务 {other!r}{near}；它从未提交过，或结束太久，已没有记录",
    ),
    "after_unknown_hint": (
        "submit the tasks that others start after first",
        "请先提交被依赖的任务",
    ),
    "after_unknown_condition_hint": (
        "the conditions before the id of a task are ok:, any: and fail:; write the id alone, or one of these",
        "任务 ID 前的条件只有 ok:、any: 和 fail:；请只写 ID，或加上其中一个",
    ),
    "never_starts": (
        "task {task!r} would never start: {why}",
        "任务 {task!r} 永远不会启动：{why}",
    ),
    "not_in_queue": (
        "there is no task {task!r} in the queue; it has ended or was never submitted",
        "队列中没有任务 {task!r}；它已结束，或从未提交",
    ),
    "task_does_not_wait": (
        "task {task!r} does not wait in the queue: it is {state:code}",
        "任务 {task!r} 不在队列中：{state:code}",
    ),
}
_ARRAYS: Mapping[str, tuple[str, str]] = {
    "no_member": (
        "array {array!r} has no member {index}: its indices are {indices}",
        "数组 {array!r} 没有成员 {index}：它的下标是 {indices}",
    ),
    "too_many_members": (
        (
            "{count:,} members of array {array!r} would each be an entry in the queue; up to {most:,} are "
            "changed alone, so change the whole array, or fewer of them"
        ),
        (
            "数组 {array!r} 的 {count:,} 个成员会各占队列中的一项；单独修改的最多 {most:,} 个，"
            "请修改整个数组，或少选一些"
        ),
    ),
    "no_array": ("task {task!r} cannot be an array: {why}", "任务 {task!r} 不能作为数组：{why}"),
    "array_does_not_run": (
        "its members run by themselves, as jobs or with run",
        "数组成员须自行运行：作业，或带 run",
    ),
    "array_is_elastic": (
        "its members cannot be elastic gangs; leave out min_replicas",
        "成员不能是弹性任务组；请去掉 min_replicas",
    ),
    "array_has_references": (
        "its arguments have object references, which one agent holds",
        "参数中有对象引用，只能由一个 Agent 持有",
    ),
    "array_adopts": ("it adopts a Ray job", "它接管的是一个 Ray 作业"),
    "array_is_awaited": (
        "nobody can wait until it runs; submit it with queue=True, and wait for its end",
        "不能等到它运行；请加 queue=True 提交，再等它结束",
    ),
    "array_needs_queue": (
        "only what waits in the queue can; submit it with queue=True",
        "只有排队的任务才可以；请加 queue=True 提交",
    ),
    "like_a_member": (
        "task {other!r} has an id as a member of array {task!r} would have; choose another id",
        "任务 {other!r} 的 ID 与数组 {task!r} 的成员相同；请换一个 ID",
    ),
    "agent_like_a_member": (
        (
            "agent {other!r} is there, with a name as one of array {task!r} would have; choose another "
            "name, or wait until it has ended"
        ),
        "Agent {other!r} 的名称与数组 {task!r} 的成员相同；请换一个名称，或等它结束",
    ),
    "array_exists": (
        "task {task!r} is an array that has not ended; cancel it first or choose another id",
        "任务 {task!r} 是一个尚未结束的数组；请先取消它，或换一个 ID",
    ),
    "member_exists": (
        (
            "task {task!r} is a member of array {array!r} that has not ended; cancel it first or choose "
            "another id"
        ),
        "任务 {task!r} 是尚未结束的数组 {array!r} 的成员；请先取消它，或换一个 ID",
    ),
    "agent_of_array": (
        "agent {agent!r} is one of array {array!r}; choose another name",
        "Agent {agent!r} 属于数组 {array!r}；请换一个名称",
    ),
}

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "exec_off": (
        (
            "commands inside tasks and leases are switched off here; an operator allows them with "
            "update_preemption_policy(allow_exec=True)"
        ),
        "这里没有开启在任务和租约内执行命令；运维人员可用 update_preemption_policy(allow_exec=True) 开启",
    ),
    "exec_no_task": ("there is no task {task!r}", "没有任务 {task!r}"),
    "exec_not_running": (
        "task {task!r} does not run (it is {state:code}); commands are started while it does",
        "任务 {task!r} 没有在运行（{state:code}）；只有运行时才能在其中执行命令",
    ),
    "exec_no_gang": (
        "task {task!r} is no gang, so it has no member {member}; leave the member out",
        "任务 {task!r} 不是任务组，没有成员 {member}；请省略成员",
    ),
    "exec_member_away": (
        "member {member} of {task!r} does not run now; members beyond its core come and go",
        "{task!r} 的成员 {member} 现在没有运行；核心之外的成员会增减",
    ),
    "exec_no_member": (
        "{task!r} has no member {member}; its members are 0 to {last}",
        "{task!r} 没有成员 {member}；其成员为 0 到 {last}",
    ),
    "exec_too_many": (
        (
            "{of_task} commands run in {task!r} and {count} in all; the most are {most_of_task} and {most}; "
            "end some, or try again later"
        ),
        (
            "{task!r} 中有 {of_task} 个命令在执行，总共 {count} 个；上限是 {most_of_task} 和 {most}；"
            "请结束一些，或稍后再试"
        ),
    ),
    "exec_no_command": (
        (
            "there is no command {command!r} of task {task!r}: it has ended, nobody asked for it for a "
            "minute, or the scheduler was started again meanwhile"
        ),
        "任务 {task!r} 没有命令 {command!r}：它已结束，或一分钟内无人读取，或调度器已重新启动",
    ),
}

_STATES: Mapping[str, tuple[str, str]] = {
    "state_above_limit": (
        "the state of task {task!r} has {size} bytes; more than saved_state_bytes, {limit}, are not kept",
        "任务 {task!r} 的状态有 {size} 字节；超过 saved_state_bytes（{limit}）的不保存",
    ),
}

REFUSALS: Mapping[str, tuple[str, str]] = {
    **_TOPOLOGY,
    **_POOLS,
    **_NODES,
    **_SHORT,
    **_OWNERS,
    **_TASKS,
    **_ARRAYS,
    **_COMMANDS,
    **_STATES,
}
