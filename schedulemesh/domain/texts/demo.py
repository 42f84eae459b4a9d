"""What ``schedulemesh demo`` tells, step by step."""

from __future__ import annotations

from collections.abc import Mapping

DEMO: Mapping[str, tuple[str, str]] = {
    "demo_starts": (
        "Starting a local Ray with 2 CPUs ...",
        "正在启动本地 Ray（2 个 CPU）……",
    ),
    "demo_takes_all": ("1. Pretraining takes the whole pool", "1. 预训练占满整个资源池"),
    "demo_arrival": (
        "2. An RLHF-stage job arrives, with the same priority",
        "2. 来了一个 RLHF 阶段的作业，优先级相同",
    ),
    "demo_evicted": (
        (
            "evicted {victim}: {reason}, priority difference {difference:g}, score {score:g}; "
            "{task} runs after {seconds:.2f} s"
        ),
        (
            "{victim} 被抢占：{reason}，优先级差 {difference:g}，得分 {score:g}；"
            "{seconds:.2f} 秒后 {task} 开始运行"
        ),
    ),
    "demo_checkpoint": (
        "checkpoint of {task}: step {step}, loss {loss:.4f}, taken at a safe point: {consistent}",
        "{task} 的检查点：第 {step} 步，loss {loss:.4f}，在安全点保存：{consistent}",
    ),
    "demo_waits": (
        "{task} is {state} now, at position {position}",
        "{task} 现在的状态是 {state}，排第 {position}",
    ),
    "demo_ran": (
        "{task} ran to its end: loss {loss:.4f}; its quota is free again",
        "{task} 运行完毕：loss {loss:.4f}；配额已空出",
    ),
    "demo_returns": ("3. The pretraining returns by itself", "3. 预训练自动恢复"),
    "demo_table": ("{task} before and after", "{task}：抢占前后"),
    "demo_step": ("step", "步"),
    "demo_hash": ("hash of the parameters", "参数的哈希"),
    "demo_process": ("process", "进程"),
    "demo_saved": ("saved", "保存时"),
    "demo_restored": ("restored", "恢复时"),
    "demo_ended": ("at the end", "结束时"),
    "demo_succeeded": (
        (
            "It returned by itself in another process, with the same state bit for bit,\n"
            "and ended exactly where an uninterrupted training ends."
        ),
        "它在另一个进程里自动恢复，状态逐位相同，\n最后的结果与从未中断的训练完全一致。",
    ),
    "demo_failed": ("FAILED: {what}", "失败：{what}"),
}
