"""What ``schedulemesh explain`` says around the engine's sentences: its title, its headings, its figures."""

from __future__ import annotations

from collections.abc import Mapping

_TITLE: Mapping[str, tuple[str, str]] = {
    "title": (
        "{kind} {task} (pool {pool}, priority {priority:.12g}{owner}): {state}{since}{further}",
        "{kind} {task}（资源池 {pool}，优先级 {priority:.12g}{owner}）：{state:code}{since}{further}",
    ),
    "kind_task": ("task", "任务"),
    "kind_gang": ("gang", "任务组"),
    "kind_lease": ("lease", "租约"),
    "kind_job": ("job", "作业"),
    "title_owner": (", owner {owner}", "，负责人 {owner}"),
    "title_ago": (" {time:span} ago", "，{time:span}前"),
    "title_for": (" for {time:span}", "，已 {time:span}"),
    "title_alternative": (", in its alternative {number}", "，采用第 {number} 种备选方式"),
    "title_flavor": (", in flavor {flavor}", "，规格 {flavor}"),
    "title_position": (", position {position} of {length}", "，排第 {position}，共 {length} 个"),
    "title_evicted": (", evicted {count:once|# times}", "，被抢占 {count} 次"),
    "title_failed": (", failed {count:once|# times}", "，失败 {count} 次"),
    "joined": ("{parts:}", "{parts:}"),
    "place": (
        "task {task} is number {position} of {length} in pool {pool}",
        "任务 {task} 在资源池 {pool} 的队列中排第 {position}，共 {length} 个",
    ),
    "no_place": (
        "task {task} is {state}; it does not wait in the queue",
        "任务 {task}：{state:code}，不在队列中",
    ),
}
_HEADINGS: Mapping[str, tuple[str, str]] = {
    "headed": ("{heading}: {what}", "{heading}：{what}"),
    "heading": ("{heading}:", "{heading}："),
    "next_step": ("next step", "下一步"),
    "also": ("also {reason}", "另外 {reason}"),
    "alternative_number": ("alternative {number}", "备选方式 {number}"),
    "flavor_named": ("flavor {flavor}", "规格 {flavor}"),
    "alternative_in_flavor": (
        "alternative {number}, flavor {flavor}",
        "备选方式 {number}，规格 {flavor}",
    ),
    "before_it": ("before it", "排在前面"),
    "weight_of_pool": ("pool's weight", "资源池权重"),
    "waits_for": ("waits for", "在等"),
    "holders": ("held by", "占用者"),
    "node": ("node {node}", "节点 {node}"),
    "used_by": ("used by", "使用者"),
    "evictions": ("evictions", "抢占"),
    "no_evictions": (
        "evictions: none, {count:# running task|# running tasks} considered",
        "抢占：不可行，已考虑 {count} 个运行中的任务",
    ),
    "evictions_allowed": (
        "evictions: {evictable} of {count:# running task|# running tasks} allowed",
        "抢占：规则允许 {evictable} 个，共 {count} 个运行中的任务",
    ),
    "sufficient": ("sufficient", "足够"),
    "expected_duration": ("expected duration", "预计时长"),
    "heading_time_limit": ("time limit", "运行时限"),
    "heading_idle_limit": ("idle limit", "空闲时限"),
    "earliest_start": ("earliest start", "最早启动"),
    "last_eviction": ("last eviction", "最近一次被抢占"),
}
_LINES: Mapping[str, tuple[str, str]] = {
    "way": ("{way}: {error} ({reason}){victims}", "{way}：{error}（{reason}）{victims}"),
    "would_evict": ("; it would evict {tasks:, }", "；会抢占 {tasks:、}"),
    "weight_raised": (
        "{factor:.3g} times as high among pools that wait, because its first task has waited so long",
        "在等待的资源池之间按 {factor:.3g} 倍计，因为它最前面的任务已等了很久",
    ),
    "and_more": ("and {count} more", "另有 {count} 个"),
    "names_and": ("{names:, } and {count} more", "{names:、}，另有 {count} 个"),
    "holder": ("{tasks: and } (pool {pool}): {amount}", "{tasks:、}（资源池 {pool}）：{amount}"),
    "agent": ("agent {agent}", "Agent {agent}"),
    "other_work": ("other Ray work uses {amount}", "其他 Ray 作业占用 {amount}"),
    "job_uses": (
        "{amount} by job {job} in {namespace}{driver}",
        "作业 {job}（{namespace}）占用 {amount}{driver}",
    ),
    "job_uses_beyond": (
        "{amount} by job {job}, more than it claims",
        "作业 {job} 比申请的多占 {amount}",
    ),
    "room_after": ("room after that of {tasks:, }", "抢占 {tasks:、} 之后放得下"),
    "spared": ("{count} spared: {code} ({meaning})", "{count} 个不能抢占：{code}（{meaning}）"),
    "sufficient_priority": ("priority {priority:.12g}", "优先级 {priority:.12g}"),
    "start_not_known": ("not known: {why}", "未知：{why}"),
    "start_now": ("now, as far as estimates say", "按估计，现在就可以"),
    "start_after_limit": (
        "in {wait:span}, when {task} has ended at the latest by its time limit",
        "{wait:span}后，{task} 最迟到时限结束",
    ),
    "start_perhaps": (
        "perhaps in {wait:span}: tasks that hold what is short run for longer than they declared",
        "可能在 {wait:span}后：占用所缺资源的任务已超过声明的时长",
    ),
    "start_if_estimates_hold": (
        "in {wait:span}, if estimates hold",
        "{wait:span}后，前提是估计准确",
    ),
    "start_about": (
        "in about {wait:span}, when {task} ends (estimated from {runs})",
        "约 {wait:span}后，等 {task} 结束；按{runs}估计",
    ),
    "duration_about": (
        "about {time:span} (estimated from {runs}; half of them took {low:span} to {high:span})",
        "约 {time:span}，按{runs}估计；其中一半用了 {low:span}到 {high:span}",
    ),
    "earlier_runs": (
        "{count} earlier runs of {features:, }",
        "以往 {count} 次运行（{features:，}）",
    ),
    "runs_owner": ("owner {owner}", "负责人 {owner}"),
    "runs_pool": ("pool {pool}", "资源池 {pool}"),
    "runs_pattern": ("pattern {pattern}", "名称 {pattern}"),
    "runs_gpu": ("gpu {gpus:g}", "gpu {gpus:g}"),
    "runs_cpu": ("cpu {cpus:g}, no gpu", "cpu {cpus:g}，无 gpu"),
    "limit_of_pool": (", as pool {pool} says", "（资源池 {pool} 规定）"),
    "limit_from_start": ("{limit:span} from its start{of_pool}", "从启动起 {limit:span}{of_pool}"),
    "limit_over": ("{limit:span}{of_pool}; it is over", "{limit:span}{of_pool}；已到时限"),
    "limit_ends": (
        "{limit:span}{of_pool}; ends at the latest in {rest:span} by its limit",
        "{limit:span}{of_pool}；最迟 {rest:span}后到时限结束",
    ),
    "idle_ends": (
        "its GPUs have been idle for {idle:span}; it ends in {rest:span} unless they are used",
        "GPU 已空闲 {idle:span}；若仍不使用，{rest:span}后结束",
    ),
    "idle_not_measured": (
        "{limit:span}, but nothing measures its GPUs, so this never ends it",
        "{limit:span}，但没有测量它的 GPU，所以不会因此结束",
    ),
    "idle_warns": (
        "a warning after {limit:span} without use of its GPUs, its end after as long again",
        "GPU 空闲 {limit:span}后提醒，再空闲同样长的时间就结束",
    ),
    "eviction": (
        "{time:span} ago {by} ({rule}{score})",
        "{time:span}前，{by}，依据：{rule:code}{score}",
    ),
    "eviction_for": (
        "for {evictor}{owner} in pool {pool}",
        "资源让给资源池 {pool} 的{evictor}{owner}",
    ),
    "evictor_is_task": ("task {task}", "任务 {task}"),
    "evictor_is_agent": ("agent {agent}", "Agent {agent}"),
    "eviction_by_request": ("by request", "应人工请求"),
    "eviction_by_limit": ("by its limit", "因时限"),
    "eviction_for_drain": ("for a drain", "因排空"),
    "eviction_for_window": ("for a window", "因维护或预留窗口"),
    "eviction_by_callback": ("as lent quota was called back", "因出借的配额被收回"),
    "earlier_state": (
        "its state was not saved: {error}; an earlier state of the attempt was",
        "它的状态没有保存：{error}；本次运行更早的状态已保存",
    ),
    "state_was_saved": ("its state was saved", "它的状态已保存"),
    "state_not_saved_yet": ("its state is not saved yet", "它的状态还没有保存"),
    "no_state_saved": ("no state was saved", "没有保存状态"),
    "was_idle_victim": (
        "its GPUs had been idle for {idle:span}, so it came first among victims",
        "它的 GPU 已空闲 {idle:span}，所以优先被抢占",
    ),
    "work_at_risk": ("{time:span} of work at risk", "{time:span}的工作可能丢失"),
    "work_lost": ("{time:span} of work lost", "损失 {time:span}的工作"),
    "freed_is_used": ("what was freed is used", "腾出的资源已用上"),
    "freed_not_used": ("what was freed was not used", "腾出的资源没有用上"),
    "ran_again": ("it ran again {time:span} ago", "{time:span}前重新运行"),
}

_VICTIMS: Mapping[str, tuple[str, str]] = {
    "victims": ("Evicted for it: {parts:; }", "为它抢占的任务：{parts:；}"),
    "victims_run_again": ("{tasks:, } (running again)", "{tasks:、}（已重新运行）"),
    "victims_wait": ("{tasks:, } (waiting in the queue)", "{tasks:、}（在排队）"),
    "victims_ended": ("{tasks:, } (ended)", "{tasks:、}（已结束）"),
}

EXPLAIN_LINES: Mapping[str, tuple[str, str]] = {**_TITLE, **_HEADINGS, **_LINES, **_VICTIMS}
