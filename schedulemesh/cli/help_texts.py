"""The texts of ``--help`` in Chinese: headings, what commands do, and options of the most used ones."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.cli.table_names import declared_tables
from schedulemesh.domain.task import FIELDS

#: By the heading in English.
HEADINGS: Mapping[str, str] = {
    "Usage": "用法",
    "Options": "选项",
    "Arguments": "参数",
    "Commands": "命令",
    "Look": "查看",
    "Understand": "了解原因",
    "Run": "运行任务",
    "Operate": "运维",
    "Configure": "配置",
    "Set up and try": "安装与试用",
}
#: What stands in brackets behind the text of an option.
REMARKS: Mapping[str, str] = {"env var": "环境变量", "default": "默认", "required": "必填"}

_ROOT: Mapping[str, str] = {
    "Pools, quotas, preemption and placement for Ray clusters.": "Ray 集群的资源池、配额、抢占与放置。",
    "`schedulemesh help COMMAND` says more of one.": "`schedulemesh help 命令` 查看某个命令的说明。",
    "Show the version.": "显示版本。",
    "Install completion for the current shell.": "为当前 shell 安装补全。",
    "Show completion for the current shell, to copy it or customize the installation.": (
        "显示当前 shell 的补全脚本，可复制或自行安装。"
    ),
    "Show this message and exit.": "显示此说明并退出。",
}
_LOOK: Mapping[str, str] = {
    "Show a scheduler: its process, pools, agents and tasks.": "显示调度器：进程、资源池、Agent 和任务。",
    "Show pools, running tasks and the queue live: the tasks that hold most come first.": (
        "实时显示资源池、运行中的任务和队列，占用多的排在前面。"
    ),
    "List the pools with their quota.": "列出资源池及其配额。",
    "Show one pool: its definition, its quota by use, and to whom it lends.": (
        "显示一个资源池：定义、配额的使用情况、借给了谁。"
    ),
    "Change fields of a pool that exists.": "修改已有资源池的字段。",
    "Create a pool that does not exist yet.": "创建新的资源池。",
    "Give a pool another name; tasks, loans, tokens and policies follow, the past keeps the old one.": (
        "重命名资源池；任务、借用、令牌和策略随之更新，历史记录保留旧名。"
    ),
    "Delete pools that nothing uses; with --drain those in use, too, when they are empty.": (
        "删除无人使用的资源池；加 --drain 时，使用中的在排空后也会删除。"
    ),
    "Create and change the cohorts and pools that a file declares; its policies and tokens are left out.": (
        "按文件创建和修改共享组与资源池；文件中的策略和令牌不处理。"
    ),
    "List the cohorts: which pools share their quota, and how much of it is idle.": (
        "列出共享组：哪些资源池共享配额，空闲多少。"
    ),
    "Create a cohort that does not exist yet; apply changes one.": "创建新的共享组；修改请用 apply。",
    "Give a cohort another name; what is in it stays in it.": "重命名共享组，组内成员不变。",
    "Delete cohorts in which no pool and no cohort is.": "删除空的共享组。",
    "List the agents: what they hold, and the tasks that they run.": (
        "列出 Agent：占用多少资源，运行哪些任务。"
    ),
    "List the nodes: what is free, what other Ray work uses, and which are closed.": (
        "列出节点：空闲多少，其他 Ray 作业占用多少，哪些已封锁。"
    ),
    "List the tasks that run, and those that wait; or the members of an array.": (
        "列出运行中和排队中的任务，或一个任务数组的成员。"
    ),
    "Show one task: its fields, how it stands, and how it ended.": (
        "显示一个任务：字段、当前状态、如何结束。"
    ),
    "Show the tasks that wait in their order, what each asks for, and why it waits.": (
        "按顺序显示排队的任务：申请多少资源，为什么在等。"
    ),
    "List the jobs that run, wait, or have ended lately.": "列出运行中、排队中和最近结束的作业。",
    "List the leases that hold placement groups or wait for them.": "列出持有或等待占位组的租约。",
    "Show how a lease stands, with the ids of its placement groups in Ray.": (
        "显示租约的状态，以及它在 Ray 中的占位组 ID。"
    ),
    "Have the times to live of leases begin again.": "续租：租约的有效期重新计时。",
    "Give leases up; what runs in their placement groups is ended.": (
        "释放租约，其占位组中的进程会被结束。"
    ),
    "List the placement groups of the pools: which are kept, where they are, and who uses them.": (
        "列出资源池的占位组：保留了哪些，在哪里，谁在使用。"
    ),
}
_UNDERSTAND: Mapping[str, str] = {
    "Say why a task waits, where it runs, by whom it was evicted or how it ended.": (
        "说明任务为什么在等、在哪里运行、被谁抢占、如何结束。"
    ),
    "Print what happened, in its order.": "按顺序列出发生的事件。",
    "List past and present attempts to run tasks: who, where, how long, how they ended.": (
        "列出任务过去和现在的各次运行：谁、在哪里、多久、如何结束。"
    ),
    "Sum up GPU-hours, CPU-hours, waiting and lost work, in whole hours.": (
        "按整点汇总 GPU 小时、CPU 小时、等待和损失的工作。"
    ),
    "List the last preemptions: who was evicted for whom, why, and what it cost.": (
        "列出最近的抢占：谁为谁让位，依据什么，代价多少。"
    ),
    "Say which tasks an incoming task may evict, in their order; nothing changes.": (
        "列出新任务可以抢占哪些任务及其顺序；不做任何改动。"
    ),
    "Show how the scheduler fares in a dozen figures; with -o wide, a filter or as data, all metrics.": (
        "用十来个数字显示调度器的状况；加 -o wide、筛选或数据格式时显示全部指标。"
    ),
    "Show the alerts that fire or are pending, and the last that were resolved.": (
        "显示已触发和待触发的告警，以及最近恢复的告警。"
    ),
    "Send every receiver of alerts a test message; fails if one does not accept it.": (
        "向每个告警接收方发送测试消息；有一个不接收即失败。"
    ),
}
_RUN: Mapping[str, str] = {
    "Run a driver command as a task on the cluster.": "把一条驱动命令作为任务在集群上运行。",
    "Run a command on this machine under a lease, such as `schedulemesh lease --gpus 1 -- bash`.": (
        "在本机以租约运行命令，如 `schedulemesh lease --gpus 1 -- bash`。"
    ),
    "Wait until tasks run or have ended, and print how each stands.": (
        "等待任务开始或结束，并显示各自的状态。"
    ),
    "Print what an attempt of a task has written: the driver of a job, or the process of an agent.": (
        "显示任务某次运行的输出：作业的驱动进程，或 Agent 的进程。"
    ),
    "Run a command in a task that runs, or a lease, such as `schedulemesh exec ID -- nvidia-smi`.": (
        "在运行中的任务或租约内执行命令，如 `schedulemesh exec ID -- nvidia-smi`。"
    ),
    "Open a terminal in a task that runs, or a lease.": "在运行中的任务或租约内打开终端。",
    "Report that running tasks are done.": "报告运行中的任务已完成。",
    "Cancel tasks.": "取消任务。",
    "Evict running tasks: save their states, and end their agents.": (
        "抢占运行中的任务：保存状态，并结束其 Agent。"
    ),
    "Save the states of running tasks, which go on.": "保存运行中任务的状态，任务继续运行。",
    "Start evicted or lost tasks again, each from the state that was saved of it last.": (
        "重新启动被抢占或丢失的任务，各从最后保存的状态恢复。"
    ),
    "Keep queued tasks from starting until they are released.": "挂起排队的任务，解除前不会启动。",
    "Let held tasks start again.": "解除任务的挂起。",
    "Change the priority of a task that waits or runs.": "修改排队或运行中任务的优先级。",
    "Change for how long a task may run, whether it runs or waits.": (
        "修改任务的运行时限，排队和运行中均可。"
    ),
    "Move queued tasks to the front of their pools; of several, the last one comes first.": (
        "把排队的任务移到资源池队首；有多个时，最后一个排最前。"
    ),
    "Make a Ray job that somebody else has started a task, which is accounted and can be evicted.": (
        "把他人启动的 Ray 作业纳为任务：计入用量，可被抢占。"
    ),
}
_OPERATE: Mapping[str, str] = {
    "Close nodes to new agents; what runs there stays.": "封锁节点：不再启动新任务，已运行的保留。",
    "Open nodes to new agents again.": "解除节点的封锁。",
    "Start nothing new on these nodes, and save and move what runs there.": (
        "排空节点：不再启动新任务，已运行的保存后移走。"
    ),
    "End the drain of these nodes.": "停止排空节点。",
    "Show the drains in progress, and what is left of each.": "显示进行中的排空，以及各剩下什么。",
    "List when nodes are maintained or reserved: the windows that are open or to come.": (
        "列出节点的维护和预约：进行中和将到来的时段。"
    ),
    "Announce maintenance of nodes, or a reservation: nothing else reaches into it, or starts in it.": (
        "登记节点的维护或预约：其他任务不会跨入或在其中启动。"
    ),
    "Delete windows; nodes that they close open again.": "删除时段；因此封锁的节点重新开放。",
    "Check every agent, and rebuild those that are dead or do not answer; fails if one was removed.": (
        "检查所有 Agent，重建已死或无应答的；有被移除的即失败。"
    ),
    "List the Ray jobs that hold or wait for something outside of the scheduler.": (
        "列出在调度器之外占用或等待资源的 Ray 作业。"
    ),
    "List or end orphans: actors and placement groups that a restored journal does not know.": (
        "列出或结束孤儿：恢复后的事务日志不认识的 Actor 和占位组。"
    ),
}
_CONFIGURE: Mapping[str, str] = {
    "Create and change the cohorts, pools, policies, tokens and windows that a file declares.": (
        "按文件创建和修改共享组、资源池、策略、令牌和时段。"
    ),
    "Show how a file differs from what the scheduler has; fails if it does.": (
        "显示文件与调度器现状的差异；有差异即失败。"
    ),
    "Print files for other programs.": "输出供其他程序使用的文件。",
    "Print the cohorts, pools, policies, tokens and windows of a scheduler as a file for apply.": (
        "把共享组、资源池、策略、令牌和时段输出为 apply 所用的文件。"
    ),
    "Print the alert rules as a rules file for Prometheus; it needs no scheduler.": (
        "输出 Prometheus 的告警规则文件；不需要调度器。"
    ),
    "Print a dashboard for Grafana as JSON; it needs no scheduler.": (
        "输出 Grafana 面板的 JSON；不需要调度器。"
    ),
    "The policies of preemption and of the queue.": "抢占策略和排队策略。",
    "Show every field of the policies.": "显示策略的全部字段。",
    "Change fields of the policies; preemption_aggressiveness=LEVEL sets two thresholds.": (
        "修改策略的字段；preemption_aggressiveness=LEVEL 会设置两个阈值。"
    ),
    "Show the fields of the policies that do not have their default values.": (
        "显示与默认值不同的策略字段。"
    ),
    "List the last changes of the preemption policy, oldest first: when, by whom, what.": (
        "列出抢占策略最近的变更，从旧到新：何时、谁、改了什么。"
    ),
    "The tokens with which the scheduler is called.": "调用调度器所用的令牌。",
    "Show the tokens, without their secrets.": "显示令牌，不含密钥。",
    "Issue a token, and print its secret, which is not shown again.": (
        "签发令牌并显示密钥；密钥只显示这一次。"
    ),
    "Give a token another secret, and print it; the former one is accepted no more.": (
        "更换令牌的密钥并显示；旧密钥不再有效。"
    ),
    "Accept tokens no more; the last operator's cannot be revoked.": (
        "吊销令牌；最后一个运维令牌不能吊销。"
    ),
    "Show who changed what, when, and from where; changes that were refused too.": (
        "显示谁在何时、从何处改了什么，包括被拒绝的变更。"
    ),
    "List the strategies that are built in and installed; fails if one cannot be loaded.": (
        "列出内置和已安装的策略；有一个无法加载即失败。"
    ),
}
_SET_UP: Mapping[str, str] = {
    "Start a detached scheduler on the cluster's head node, or find it running.": (
        "在集群的头节点启动独立的调度器；已在运行则直接使用。"
    ),
    "End a scheduler with all its agents, and delete its journal.": (
        "结束调度器及其全部 Agent，并删除事务日志。"
    ),
    "List the schedulers of a Ray cluster, those that end with their job included, and whether they "
    "answer.": ("列出 Ray 集群中的调度器（含随作业结束的），以及是否应答。"),
    "Check Ray, versions, scheduler, journal, clock and disk, and say what to do; fails if a check did.": (
        "检查 Ray、版本、调度器、事务日志、时钟和磁盘，并给出处理方法；有一项不通过即失败。"
    ),
    "Evict a real training job on a local Ray, and see it return by itself with its state.": (
        "在本机 Ray 上抢占一个真实的训练作业，看它带着状态自动恢复。"
    ),
    "Run a trace of jobs in virtual time, and report how long they wait under each policy.": (
        "在虚拟时间中重放一批作业，报告各策略下的等待时间。"
    ),
    "Tell what a period of a scheduler's own history would have been under another policy.": (
        "推演：换一种策略，过去一段时间会怎样。"
    ),
    "Show the versions of ScheduleMesh, Ray and Python.": "显示 ScheduleMesh、Ray 和 Python 的版本。",
    "Show what the commands do, or what one of them does and takes.": (
        "显示各命令的用途，或某个命令的用途和参数。"
    ),
}
_SHARED_OPTIONS: Mapping[str, str] = {
    "The scheduler's name; default: the one that lives in the cluster.": (
        "调度器的名称；默认为集群中正在运行的那个。"
    ),
    "Its Ray namespace.": "它的 Ray 命名空间。",
    "The Ray cluster; auto: the one on this machine.": "Ray 集群；auto 表示本机上的。",
    "Language of sentences; default: by SCHEDULEMESH_LANG or LANG.": (
        "语言；默认由 SCHEDULEMESH_LANG 或 LANG 决定。"
    ),
    "Form of the output.": "输出格式。",
    "Print again until interrupted.": "反复显示，直到中断。",
    "Seconds between two looks of --watch.": "--watch 两次显示之间的秒数。",
    "Looks of --watch; 0: until interrupted.": "--watch 的显示次数；0 表示直到中断。",
    "Only rows with this value; KEY!=VALUE: without it. Repeatable.": (
        "只显示该字段为此值的行；KEY!=VALUE 表示不为此值。可重复。"
    ),
    "Only rows with this label; LABEL!=VALUE: without it. Repeatable.": (
        "只显示有此标签的行；LABEL!=VALUE 表示没有。可重复。"
    ),
    "Sort by this value; -KEY: the largest first.": "按此字段排序；-KEY 表示从大到小。",
    "Ids of tasks.": "任务的 ID。",
}
_OPTIONS_OF_LISTINGS: Mapping[str, str] = {
    "Only these: host names, addresses, ids or the beginnings of ids.": (
        "只显示这些节点：主机名、地址、ID 或 ID 的开头。"
    ),
    "The members of this array, those that have ended too.": "该任务数组的成员，包括已结束的。",
    "Of an array: only members behind this index.": "任务数组：只显示此下标之后的成员。",
    "Of an array: how many members are shown.": "任务数组：显示多少个成员。",
    "Only this pool's queue.": "只显示该资源池的队列。",
    "How many tasks of each pool are looked at; 0: all. Else 20, or all with -f, -l or --sort.": (
        "每个资源池查看多少个任务；0 表示全部。默认 20，有 -f、-l 或 --sort 时为全部。"
    ),
    "Only tasks behind this position: the next page.": "只显示此排位之后的任务，即下一页。",
    "The task's id.": "任务的 ID。",
    "By what it is compared with other tasks that wait.": "它与其他排队任务的比较依据。",
    "The same as -o json.": "同 -o json。",
    "pool, owner, label or flavor.": (
        "pool（资源池）、owner（负责人）、label（标签）或 flavor（规格）。"
    ),
    "With --by label: only the values of this label.": "与 --by label 一起：只统计此标签的值。",
    "From then on: 90s, 30m, 12h, 7d or a date.": "从那时起：90s、30m、12h、7d 或日期。",
    "Until then; see --since.": "到那时为止；写法同 --since。",
    "A task's id: its attempts alone.": "任务的 ID：只列出它的各次运行。",
    "Only those in this pool.": "只列出该资源池的。",
    "Only those of this owner.": "只列出该负责人的。",
    "Only those in this state.": "只列出处于该状态的。",
    "The last so many.": "最近的多少条。",
    "Write all of them to a file as a job trace.": "全部写入文件，作为作业记录。",
    "csv, jsonl or parquet; default: as the file's name ends.": (
        "csv、jsonl 或 parquet；默认按文件名的后缀。"
    ),
    "With --watch they are listed again when something has happened, or after 20 s. Of one task its events "
    "are in JSON and YAML; `events --task` prints them.": (
        "加 --watch 时，有事件发生或过 20 秒会重新列出。指定一个任务时，其事件只在 JSON 和 YAML 中；"
        "`events --task` 可以显示。"
    ),
    "How far they have to get: running or ended.": "等到哪一步：running（开始）或 ended（结束）。",
    "The longest wait, such as 30m; default: no limit.": "最长等待，如 30m；默认不限。",
    "Wait until one of them has got so far, not all.": "只要其中一个达到即可，不必全部。",
    "Fails where one of those that were waited for was not completed, and with the exit code 124 where the "
    "time is over.": "所等的任务中有未完成的即失败；超时的退出码为 124。",
}
_OPTIONS_OF_LOGS: Mapping[str, str] = {
    "The id of a task: a job, an agent or a gang.": "任务的 ID：作业、Agent 或任务组。",
    "Of this attempt; else of the last one.": "第几次运行；默认最后一次。",
    "Of a gang: of this member.": "任务组：哪个成员。",
    "Of a gang: the member to run it beside.": "任务组：在哪个成员旁执行。",
    "Of an agent: stdout or stderr alone; else each is printed where it belongs.": (
        "Agent：只显示 stdout 或 stderr；默认各自输出到对应的流。"
    ),
    "The last so many lines only.": "只显示最后多少行。",
    "Print also what it writes from now on, until its end.": "继续显示此后的输出，直到结束。",
    "Only lines with this text, whatever the case.": "只显示含此文字的行，不区分大小写。",
    "With --search it fails where no line has the text.": "加 --search 时，没有匹配的行即失败。",
}
_OPTIONS_OF_SUBMIT: Mapping[str, str] = {
    "A script may have options in the comments at its beginning, as `#SM --gpus 4`; those of the command "
    "line override them.": "脚本可以在开头的注释中写选项，如 `#SM --gpus 4`；命令行的选项优先。",
    "The driver's command, after `--`.": "驱动命令，写在 `--` 之后。",
    "YAML with these options by name, and its `command`.": "YAML 文件，含这些选项和 `command`。",
    "Only say what would happen: exit code 0 where it would start now, 6 where it would not.": (
        "只说明会怎样：能立即启动时退出码为 0，否则为 6。"
    ),
    "Refuse it where it does not fit, instead of queueing it.": "放不下时拒绝，而不是排队。",
    "Wait for its end, and exit with its exit code.": "等它结束，并以它的退出码退出。",
    "As --wait, and print what it writes.": "同 --wait，并显示它的输出。",
    "The pool that it runs in.": "在哪个资源池运行。",
    "Its id; else one is made.": "任务的 ID；默认自动生成。",
    "CPUs for what it starts in Ray; else one for each of its GPUs.": (
        "供它在 Ray 中使用的 CPU；默认每块 GPU 一个。"
    ),
    "GPUs for what it starts in Ray.": "供它在 Ray 中使用的 GPU。",
    "Memory for what it starts: 512MB, 64GB, or a number of MB.": (
        "供它使用的内存：512MB、64GB，或以 MB 为单位的数字。"
    ),
    "A custom resource. Repeatable.": "自定义资源。可重复。",
    "A part of the claim, on one node, such as cpu=8,gpu=4. Repeatable.": (
        "申请中位于同一节点的一份，如 cpu=8,gpu=4。可重复。"
    ),
    "How its parts are placed: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD. Without --bundle there is a part "
    "for each GPU, else for each CPU.": (
        "各份如何放置：PACK、SPREAD、STRICT_PACK 或 STRICT_SPREAD。没有 --bundle 时每块 GPU 一份，"
        "没有 GPU 时每个 CPU 一份。"
    ),
    "Only on nodes with this model of GPU, such as H100; several as H100,A100.": (
        "只在有此型号 GPU 的节点上，如 H100；多种写作 H100,A100。"
    ),
    "Only on nodes with this label; !VALUE, in(A, B) and !in(A, B) are allowed. Repeatable.": (
        "只在有此标签的节点上；可用 !VALUE、in(A, B) 和 !in(A, B)。可重复。"
    ),
    "What will do instead, such as gpu-model=L40S,gpus=2. Repeatable, the first ones first.": (
        "备选方式，如 gpu-model=L40S,gpus=2。可重复，先写的优先。"
    ),
    "Its priority. A number, or one of the classes critical (10), high (5), normal (1), low (0.5), "
    "background (0.1), or of the policy.": (
        "优先级：数字，或 critical (10)、high (5)、normal (1)、low (0.5)、background (0.1)，或策略中的类别。"
    ),
    "A label, by which rules rank it. Repeatable.": "标签，供规则使用。可重复。",
    "A folder of this machine that it runs in, up to 16 MB packed.": (
        "本机的工作目录，打包后不超过 16 MB。"
    ),
    "A variable of its environment. Repeatable.": "环境变量。可重复。",
    "Ray's runtime environment: a YAML or JSON file, or its text.": (
        "Ray 的运行时环境：YAML 或 JSON 文件，或其内容。"
    ),
    "A folder on all nodes that every attempt finds again.": "所有节点可见的目录，每次运行都能找到。",
    "CPUs of its claim that the driver itself holds.": "申请的 CPU 中由驱动进程自身占用的。",
    "GPUs of its claim that the driver itself holds; else all, until it connects to Ray.": (
        "申请的 GPU 中由驱动进程自身占用的；默认在连接 Ray 之前为全部。"
    ),
    "How long environment, load or constructor may take, such as load=5m. Repeatable.": (
        "environment、load 或 constructor 各可用多久，如 load=5m。可重复。"
    ),
    "From the notice of an eviction to its end: 90s, 2m.": "从抢占通知到结束的时间：90s、2m。",
    "warn or end: where it holds more in Ray than it claims; else the policy's.": (
        "warn（警告）或 end（结束）：在 Ray 中占用超过申请时；默认按策略。"
    ),
    "A detached actor that stays when it ends. Repeatable.": "结束后保留的独立 Actor。可重复。",
    "Not a child of the task that this process belongs to.": "不作为当前进程所属任务的子任务。",
}
_OPTIONS_OF_START: Mapping[str, str] = {
    "Folder of the journal; default: Ray's session folder.": "事务日志所在的目录；默认在 Ray 的会话目录。",
    "How often the health of the agents is checked: 5m.": "多久检查一次 Agent 的健康：5m。",
    "Port or host:port of its HTTP API; off: there is none. Default: 127.0.0.1:8090.": (
        "HTTP API 的端口或 host:port；off 表示不提供。默认 127.0.0.1:8090。"
    ),
    "The path below which a proxy serves its HTTP API and page.": "代理把 HTTP API 和网页放在哪个路径下。",
    "The IP address of a proxy whose header X-Forwarded-User says who looks at the page. Repeatable.": (
        "代理的 IP 地址：看网页的人以它的 X-Forwarded-User 请求头为准。可重复。"
    ),
    "A YAML file of alert rules and receivers; off: there are no alerts.": (
        "YAML 文件，含告警规则和接收方；off 表示不告警。"
    ),
    "Where attempts that have ended are sent as OpenTelemetry traces, such as "
    "http://collector:4318/v1/traces.": (
        "把结束的运行作为 OpenTelemetry 追踪发到哪里，如 http://collector:4318/v1/traces。"
    ),
    "token: every call needs a token; off: calls over Ray need none.": (
        "token：每次调用都要令牌；off：经 Ray 的调用不需要。"
    ),
    "Do not ask.": "不再询问。",
    "Training steps of the pretraining job.": "预训练作业的训练步数。",
}
_OPTIONS_OF_APPLY: Mapping[str, str] = {
    "What the file leaves out stays as it is. With --prune, pools, windows and tokens that it leaves out are "
    "deleted and revoked, where it has a list `pools`, `windows` or `tokens`; --dry-run names them, and what "
    "uses each pool.": (
        "文件没有提到的保持不变。加 --prune 时，文件里有 `pools`、`windows` 或 `tokens` 列表的，"
        "没有列出的资源池和窗口会删除，令牌会吊销；--dry-run 先列出它们，以及谁在用这些资源池。"
    ),
    "The YAML file; -: stdin.": "YAML 文件；- 表示标准输入。",
    "Only show what would change.": "只显示会改变什么。",
    "Where the secret of each token that is created is written.": "新建令牌的内容写到哪里。",
    "Delete pools and windows, and revoke tokens, that the file leaves out where it has a list.": (
        "文件里有列表的，删除没有列出的资源池和窗口，吊销没有列出的令牌。"
    ),
    "With --prune: also pools in use, as pools delete --drain.": (
        "与 --prune 一起：使用中的资源池也删除，同 pools delete --drain。"
    ),
}
_OPTIONS_OF_PREEMPTION: Mapping[str, str] = {
    "Without amounts it asks for nothing, and the rules alone decide.": (
        "不写用量就不要求资源，只按规则判断。"
    ),
    "The pool of the incoming task.": "新任务的资源池。",
    "CPUs that it asks for.": "它要的 CPU。",
    "GPUs that it asks for.": "它要的 GPU。",
    "Memory that it asks for, such as 64GB.": "它要的内存，如 64GB。",
    "A label of it. Repeatable.": "它的标签。可重复。",
    "At most so many tasks.": "最多多少个任务。",
    "Only those of this task.": "只看这个任务的。",
    "Only those of this pool.": "只看这个资源池的。",
    "With --follow what happens from now on, unless --after says where to continue.": (
        "加 --follow 时显示从现在起发生的，除非用 --after 指定从哪里继续。"
    ),
    "Go on with what happens, until interrupted.": "持续显示，直到中断。",
    "Those after this cursor; 0: from the beginning.": "这个位置之后的；0 表示从头开始。",
    "At most so many.": "最多多少条。",
    "Only those about this pool and its tasks.": "只看这个资源池及其任务的。",
    "Only those of this kind; repeatable.": "只看这一类的；可重复。",
}

_OPTIONS_OF_TASK_FIELDS: Mapping[str, str] = {
    field.option.english: field.option.chinese for field in FIELDS.values() if field.option
}

#: By the text in English, in one line.
CHINESE: Mapping[str, str] = {
    **_OPTIONS_OF_TASK_FIELDS,
    **{call.first_sentence(): table.chinese for call, _, table in declared_tables()},
    **_ROOT,
    **_LOOK,
    **_UNDERSTAND,
    **_RUN,
    **_OPERATE,
    **_CONFIGURE,
    **_SET_UP,
    **_SHARED_OPTIONS,
    **_OPTIONS_OF_LISTINGS,
    **_OPTIONS_OF_LOGS,
    **_OPTIONS_OF_SUBMIT,
    **_OPTIONS_OF_START,
    **_OPTIONS_OF_APPLY,
    **_OPTIONS_OF_PREEMPTION,
}
