"""What commands say in the cells of tables, below tables, and of what they have changed."""

from __future__ import annotations

from collections.abc import Mapping

_CELLS: Mapping[str, tuple[str, str]] = {
    "cell_built_in": ("built in", "内置"),
    "cell_yes": ("yes", "是"),
    "cell_no": ("no", "否"),
    "cell_none": ("none", "无"),
    "cell_no_owner": ("(none)", "（无）"),
    "cell_short": ("{amounts} short", "{amounts} 不足"),
    "cell_evictions": ("evicted {count}x", "被抢占{count}次"),
    "cell_default": ("{most} (default {default})", "{most}（默认 {default}）"),
    "cell_with_jobs": ("{used} ({jobs:, } beyond its claim)", "{used}（{jobs:，} 超出申请）"),
    "cell_beyond_claim": ("{job}, beyond its claim", "{job}，超出申请"),
    "cell_node": ("node", "节点"),
    "cell_pool": ("pool", "资源池"),
    "cell_all": ("all ({count})", "全部（{count}）"),
    "cell_maintenance": ("maintenance", "维护"),
    "cell_no_limit": ("no limit", "无上限"),
    "cell_no_budget": ("no budget", "无预算"),
    "cell_gpu_hours": ("{hours} GPU-hours", "{hours} GPU 小时"),
    "cell_in_namespace": ("{name} (namespace {namespace})", "{name}（命名空间 {namespace}）"),
    "cell_process": ("epoch {epoch}, process {pid}", "世代 {epoch}，进程 {pid}"),
    "cell_tasks": ("{running} running, {queued} queued", "{running} 个运行，{queued} 个排队"),
    "cell_counted": ("{count} {what:code}", "{what:code} {count}"),
    "cell_work": ("{lost} of work lost, {saved} saved", "损失 {lost}，保存 {saved}"),
    "cell_part": ("{used} of {total}", "{used} / {total}"),
    "cell_firing": ("{count} firing", "{count} 个触发中"),
    "cell_evicted_for": ("preempted for {evictor}", "preempted，让位给 {evictor}"),
    "cell_unknown": ("(unknown)", "（未知）"),
    "cell_unverified": ("{who} (unverified)", "{who}（未核实）"),
    "cell_accepted": ("accepted", "已接受"),
    "cell_failed": ("failed", "失败"),
    "cell_flavor": (
        "{name} ({kinds:, } on nodes with {conditions})",
        "{name}（节点 {conditions} 上的 {kinds:、}）",
    ),
}

_DECLARED: Mapping[str, tuple[str, str]] = {
    "declared_exists": ("exists", "已存在"),
    "declared_in_use": ("in use: {users:, }", "使用中：{users:，}"),
    "declared_agents": ("{count:# agent|# agents}", "{count} 个 Agent"),
    "declared_queued": ("{count} queued", "{count} 个排队"),
    "declared_lent": ("{amounts} lent to {pool}", "借给 {pool} {amounts}"),
    "declared_deleted": ("is deleted", "将删除"),
    "declared_drained": ("is drained and deleted", "将排空并删除"),
    "declared_stays": ("stays: it is in use", "保留：使用中"),
    "declared_revoked": ("is revoked", "将吊销"),
}

_PREEMPTIONS: Mapping[str, tuple[str, str]] = {
    "evicts_one": ("one of these", "以下任务之一"),
    "evicts_nobody": ("nobody", "无"),
    "preempted_place": ("{owner} in {pool}", "{owner}，资源池 {pool}"),
    "preempted_priority": ("priority {value}", "优先级 {value}"),
    "preempted_by_client": ("requested by {client}", "由 {client} 请求"),
    "preempted_by_agent": ("agent {agent}", "Agent {agent}"),
    "preempted_score": ("score {score}", "得分 {score}"),
    "preempted_saved": ("state saved", "状态已保存"),
    "preempted_no_state": ("no state", "没有状态"),
    "preempted_earlier_saved": ("earlier state saved", "保存的是更早的状态"),
    "preempted_not_saved": ("not saved", "未保存"),
    "preempted_now": ("being evicted", "正在抢占"),
    "preempted_free": ("free after {span}", "{span} 后释放"),
    "preempted_used": ("used after {span}", "{span} 后被使用"),
    "preempted_unused": ("not used", "未被使用"),
    "preempted_again": ("ran again after {span}", "{span} 后重新运行"),
    "preempted_requeued": ("requeued", "重新排队"),
}

_RESULTS: Mapping[str, tuple[str, str]] = {
    "result_refused": ("refused: {reason}", "被拒绝：{reason}"),
    "result_code": ("{code}", "{code:code}"),
    "result_renamed": ("renamed to {name}", "已更名为 {name}"),
    "result_state_saved": ("state saved, {size:,} bytes", "状态已保存，{size:,} 字节"),
    "result_restorer": ("given to the restorer of its pool", "已交给资源池的恢复函数"),
    "result_queued_again": ("queued again", "重新排队"),
    "result_runs_again": ("runs again", "重新运行"),
    "result_renewed": ("renewed", "已续期"),
    "result_released": ("released", "已释放"),
    "result_held": ("held", "已挂起"),
    "result_unheld": ("released", "已解除挂起"),
    "result_front": ("moved to the front", "已移到队首"),
    "result_priority": ("priority {value}", "优先级 {value}"),
    "result_pool_limit": ("limit of its pool", "按资源池的时限"),
    "result_limit": ("limit {span}", "时限 {span}"),
    "result_completed": ("completed", "已完成"),
    "result_completed_with": ("completed, {change:code}", "已完成，{change:code}"),
    "result_cancelled": ("cancelled", "已取消"),
    "result_evicted": (
        "evicted {count}, states saved: {saved}",
        "抢占 {count} 个，保存状态 {saved} 个",
    ),
    "result_cordoned": ("cordoned", "已封锁"),
    "result_open": ("open", "已开放"),
    "result_draining": ("draining", "正在排空"),
    "result_not_drained": ("was not drained", "本来没有排空"),
    "result_drain_ended": ("drain ended", "排空已结束"),
    "result_open_again": ("open again", "已重新开放"),
}

_REMARKS: Mapping[str, tuple[str, str]] = {
    "remark_other_marks": (
        "{script} has lines of {mark}, which are not read here; options are written as `#SM --gpus 4`",
        "{script} 里 {mark} 开头的行在这里不读取；选项写成 `#SM --gpus 4`",
    ),
    "remark_no_script": (
        "{script} is not in this folder: its options are not read, and the job fails unless its node has it",
        "当前目录没有 {script}，没有从中读取选项；如果节点上也没有，作业会失败",
    ),
    "remark_columns": (
        "not shown, for the width of the terminal: {columns:, }; -o wide has all columns",
        "终端宽度不够，未显示：{columns:、}；-o wide 显示全部列",
    ),
    "remark_agents_cut": (
        "{shown} of {total} agents are shown; `schedulemesh agents` lists all",
        "共 {total} 个 Agent，显示 {shown} 个；`schedulemesh agents` 列出全部",
    ),
    "remark_tasks_cut": (
        "{shown} of {total} tasks are shown; `schedulemesh tasks` lists all",
        "共 {total} 个任务，显示 {shown} 个；`schedulemesh tasks` 列出全部",
    ),
    "remark_shown": ("{shown} of {total} tasks are shown", "共 {total} 个任务，显示 {shown} 个"),
    "remark_next_tasks": (
        "{shown} of {total} tasks are shown; --limit 0 shows all, --after {last} the next ones",
        "共 {total} 个任务，显示 {shown} 个；--limit 0 显示全部，--after {last} 显示后面的",
    ),
    "remark_past": (
        "{kind} {name!r} has nothing now; `schedulemesh history --{kind} {name}` has its past",
        "{name!r} 现在没有任务；过去的见 `schedulemesh history --{kind} {name}`",
    ),
    "remark_ended": (
        "task {name!r} has ended; `schedulemesh history {name}` has its past",
        "任务 {name!r} 已结束；过去的见 `schedulemesh history {name}`",
    ),
    "remark_no_task": ("there is no task {name!r}", "没有任务 {name!r}"),
    "remark_no_task_of": ("there is no task of owner {name!r}", "负责人 {name!r} 没有任务"),
    "remark_no_change_by": ("there is no change by {who!r}", "没有 {who!r} 做的变更"),
    "remark_older": ("there are older ones; --limit shows more", "还有更早的；用 --limit 显示更多"),
    "remark_behind": (
        "the last {count} commits are not in the history yet",
        "最近 {count} 次提交尚未写入历史",
    ),
    "remark_span": ("{since} to {until}", "{since} 至 {until}"),
    "remark_since_future": (
        "--since is in the future; what has not ended by now is taken to go on until then",
        "--since 在将来；尚未结束的按一直运行到那时计算",
    ),
    "remark_until_future": (
        "--until is in the future; what there is ends now",
        "--until 在将来；数据到现在为止",
    ),
    "remark_written": ("{count} attempts to run tasks were written", "已写入 {count} 条运行记录"),
    "remark_appended": (
        "{count} changes were appended to {path}",
        "已向 {path} 追加 {count} 条变更",
    ),
    "remark_array": (
        "array {name} ({array}): {state}; {counts:, }",
        "数组 {name}（{array}）：{state}；{counts:，}",
    ),
    "remark_members": ("{count:,} {state}", "{state} {count:,}"),
    "remark_next_members": (
        "--after {next} shows the next members",
        "--after {next} 显示后面的成员",
    ),
    "remark_lacks_group": (
        "pool {pool!r} lacks a group: {error}",
        "资源池 {pool!r} 缺一个占位组：{error}",
    ),
    "remark_not_yet": (
        "{count} of {total} tasks are not {until} after {limit}",
        "{limit} 后仍有 {count} / {total} 个任务未到 {until}",
    ),
    "remark_events_removed": (
        "events after {after} are missing: the history does not keep them any more",
        "{after} 之后的事件已缺失：历史不再保留",
    ),
    "remark_events_anew": (
        "there is no event {after}: the history has begun again, and is listed from its beginning",
        "没有事件 {after}：历史已重新开始，从头列出",
    ),
    "remark_awaited": ("{error}; waiting for it", "{error}；正在等它恢复"),
    "remark_paused": ("waiting for the scheduler: {error}", "正在等待调度器：{error}"),
    "scheduler_alive": (
        "scheduler {name!r} is alive (epoch {epoch}, process {pid})",
        "调度器 {name!r} 正在运行（世代 {epoch}，进程 {pid}）",
    ),
    "journal_at": ("journal: {path}", "事务日志：{path}"),
    "attach_with": ("attach:  {code}", "连接：{code}"),
    "remark_secret": (
        "token {name!r} is issued; its secret is shown only now",
        "令牌 {name!r} 已签发；密钥只在此刻显示",
    ),
    "remark_new_secret": (
        "token {name!r} has another secret, which is shown only now",
        "令牌 {name!r} 已换新密钥，只在此刻显示",
    ),
    "remark_secret_in": (
        "the secret of token {name!r} is in {path}",
        "令牌 {name!r} 的密钥在 {path}",
    ),
    "remark_secret_written": ("{path} has the new secret", "新密钥已写入 {path}"),
    "remark_lease_granted": (
        "lease {name} is granted; it ends with the command",
        "已取得租约 {name}；它随命令结束",
    ),
    "remark_lease_evicted": (
        "the lease is evicted: the command is ended in {seconds:.0f} s; save your work",
        "租约被抢占：命令将在 {seconds:.0f} 秒后结束；请保存",
    ),
    "remark_lease_ended": (
        "the lease has ended ({state}), and the command with it",
        "租约已结束（{state}），命令随之结束",
    ),
}

_JOBS: Mapping[str, tuple[str, str]] = {
    "job_submitted": ("submitted {name}", "已提交 {name}"),
    "job_not_started": (
        "task {name!r} has not started: it is {state}",
        "任务 {name!r} 尚未启动：{state}",
    ),
    "job_maybe_submitted": (
        "job {name!r} may be submitted all the same; `schedulemesh jobs` lists it then",
        "作业 {name!r} 可能已经提交；如已提交，`schedulemesh jobs` 会列出",
    ),
    "job_goes_on": (
        (
            "job {name!r} is not ended by this; `schedulemesh logs {name} --follow` shows what it writes, "
            "`schedulemesh cancel {name}` ends it"
        ),
        (
            "作业 {name!r} 没有因此结束；`schedulemesh logs {name} --follow` 显示输出，"
            "`schedulemesh cancel {name}` 结束它"
        ),
    ),
    "job_runner_failed": (
        "job {task!r} could not be run: {error}",
        "作业 {task!r} 无法运行：{error}",
    ),
    "job_waits": (
        "queued, {position} of {length}: {reason}",
        "排队，第 {position} 位，共 {length} 个：{reason}",
    ),
    "job_no_cpu_quota": (
        (
            "pool {pool!r} has no CPU quota, so the job claims no CPUs; its actors have to say "
            "num_cpus=0"
        ),
        "资源池 {pool!r} 没有 CPU 配额，所以作业不申请 CPU；它的 Actor 要写明 num_cpus=0",
    ),
    "job_bundle_without_cpus": (
        "--bundle {bundle} claims no CPUs; actors that run there have to say num_cpus=0",
        "--bundle {bundle} 不申请 CPU；在那里运行的 Actor 要写明 num_cpus=0",
    ),
    "job_would_not_start": ("would not start now: {error}", "现在不会启动：{error}"),
    "job_position": (
        "position in the queue of its pool: {position}",
        "在资源池队列中的位置：{position}",
    ),
    "job_earliest": (
        "earliest start: {time}, if what runs ends as estimated",
        "最早启动：{time}（如运行中的任务按估计结束）",
    ),
    "job_would_start": ("would start now", "现在会启动"),
    "job_would_evict": ("would start now, and evict {count}:", "现在会启动，并抢占 {count} 个："),
    "job_victim": (
        "{task} ({reason}), which loses {span} of work",
        "{task}（{reason}），损失 {span} 的工作",
    ),
    "job_would_cancel": (
        "it would cancel the start of {starts:, }, on quota that its pool takes back",
        "会取消 {starts:、} 的启动，因为它们用的是资源池要收回的配额",
    ),
}

_DOCTOR: Mapping[str, tuple[str, str]] = {
    "doctor_ray_version": ("Ray's version", "Ray 版本"),
    "doctor_ray_nodes": ("Ray's nodes", "Ray 节点"),
    "doctor_ray_resources": ("Ray's resources", "Ray 资源"),
    "doctor_disk": ("disk at {folder}", "磁盘 {folder}"),
    "doctor_scheduler": ("scheduler", "调度器"),
    "doctor_clock": ("clock", "时钟"),
    "doctor_journal": ("journal", "事务日志"),
    "doctor_orphans": ("orphans", "孤儿"),
    "doctor_strategies": ("strategies", "策略"),
    "doctor_start_ray": ("start Ray, or name its --address", "启动 Ray，或用 --address 指明地址"),
    "doctor_version": ("{version} on Python {python}", "{version}，Python {python}"),
    "doctor_install": ("install {requirement!r}", "安装 {requirement!r}"),
    "doctor_make_folder": ("Ray uses this folder; make it", "Ray 要用这个目录；请创建"),
    "doctor_free": ("{free:.1f} of {total:.1f} GiB free", "空闲 {free:.1f} / {total:.1f} GiB"),
    "doctor_free_space": (
        "free space, or Ray and the journal will fail to write",
        "请腾出空间，否则 Ray 和事务日志会写入失败",
    ),
    "doctor_nodes": (
        "{count:# node|# nodes} alive, {cpus} CPUs, {gpus} GPUs",
        "{count} 个节点，{cpus} 个 CPU，{gpus} 个 GPU",
    ),
    "doctor_died": ("{count} have died", "{count} 个已丢失"),
    "doctor_lost_tasks": (
        "tasks that ran there were lost; see `ray list nodes`",
        "在那里运行的任务已丢失；见 `ray list nodes`",
    ),
    "doctor_all_in_use": ("all that is taken is in use", "占用的资源都有使用者"),
    "doctor_of_node": ("{amount} of node {node}", "节点 {node} 的 {amount}"),
    "doctor_nobody_has": ("nothing that lives has {amounts:; }", "没有使用者：{amounts:；}"),
    "doctor_ray_lost": (
        "Ray has lost them, see docs/reliability.md; drain the node, and start Ray there again",
        "Ray 把它们弄丢了，见 docs/reliability.md；请排空该节点，并在那里重启 Ray",
    ),
    "doctor_alive": (
        "alive, epoch {epoch}, answered in {took:.0f} ms",
        "正常，世代 {epoch}，应答用时 {took:.0f} ms",
    ),
    "doctor_busy": (
        "the supervisor is busy or its node is; see its CPU use",
        "调度进程或它的节点繁忙；请查看 CPU 使用率",
    ),
    "doctor_list": (
        "`schedulemesh list` shows which schedulers there are",
        "`schedulemesh list` 列出有哪些调度器",
    ),
    "doctor_ahead": (
        "the scheduler's is {by:.2f} s ahead of this one",
        "调度器的时钟比本机快 {by:.2f} 秒",
    ),
    "doctor_behind": (
        "the scheduler's is {by:.2f} s behind this one",
        "调度器的时钟比本机慢 {by:.2f} 秒",
    ),
    "doctor_synchronise": (
        "synchronise both machines, as with NTP",
        "请同步两台机器的时钟，例如用 NTP",
    ),
    "doctor_no_api": ("none is served", "没有提供"),
    "doctor_api_silent": ("{url} does not answer ({error})", "{url} 没有应答（{error}）"),
    "doctor_firewall": (
        "a firewall closes the port, or it is open on the scheduler's machine only",
        "防火墙关闭了端口，或端口只在调度器所在机器上开放",
    ),
    "doctor_other_schedulers": ("other schedulers", "其他调度器"),
    "doctor_others": ("on the same nodes: {schedulers}", "同样管理这些节点：{schedulers}"),
    "doctor_one_scheduler": (
        "keep one, or both may promise the same resources: `schedulemesh stop --name NAME`",
        "只保留一个，否则可能重复分配同一份资源：`schedulemesh stop --name NAME`",
    ),
    "doctor_journal_away": ("{address}, not on this node", "{address}，不在本节点"),
    "doctor_journal_gone": ("{address} is gone", "{address} 不存在"),
    "doctor_restore_journal": (
        "nothing can become durable; restore it, or stop the scheduler",
        "现在什么都无法持久保存；请恢复它，或停止调度器",
    ),
    "doctor_journal_closed": ("{address} is not writable", "{address} 不可写"),
    "doctor_open_journal": (
        "nothing can become durable; make file and folder writable",
        "现在什么都无法持久保存；请使文件和目录可写",
    ),
    "doctor_journal_size": ("{address}, {size:.1f} MiB", "{address}，{size:.1f} MiB"),
    "doctor_unknown": (
        "{count} that the journal does not know",
        "{count} 个不在事务日志中",
    ),
    "doctor_end_orphans": (
        "`schedulemesh orphans` lists and ends them",
        "`schedulemesh orphans` 列出并结束它们",
    ),
    "doctor_disabled": ("{name} is disabled: {why}", "{name} 已停用：{why}"),
    "doctor_mend": (
        "mend the strategy and start the scheduler again",
        "请修正该策略，并重启调度器",
    ),
}

#: What commands ask before they end something.
_QUESTIONS: Mapping[str, tuple[str, str]] = {
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

COMMAND_OUTPUT: Mapping[str, tuple[str, str]] = {
    **_CELLS,
    **_DECLARED,
    **_PREEMPTIONS,
    **_RESULTS,
    **_REMARKS,
    **_JOBS,
    **_DOCTOR,
    **_QUESTIONS,
}
