"""What refusals say of tokens: which role a call needs, and what is beyond the limits of a token; and what
the page says where it has no token, and of what is there no more.
"""

from __future__ import annotations

from collections.abc import Mapping

PERMISSIONS: Mapping[str, tuple[str, str]] = {
    "beyond_role": (
        "token {token!r} has the role {role:code}; this needs the role {least:code}",
        "令牌 {token!r} 的角色是“{role:code}”，此操作需要“{least:code}”角色",
    ),
    "token_is_void": (
        "token {token!r} was revoked or rotated, or has expired",
        "令牌 {token!r} 已被吊销或轮换，或已过期",
    ),
    "operator_moves_to_front": (
        "only an operator moves tasks to the front",
        "只有运维可以把任务移到队首",
    ),
    "not_for_submitters": ("this is not for submitters", "提交者不能执行此操作"),
    "not_for_pool_operators": (
        "this is for operators of the whole scheduler, not for those of {pools}",
        "此操作需要整个调度器的运维，{pools}的运维不能执行",
    ),
    "submitters_agent_has_task": (
        "a submitter's agents run a task",
        "提交者的 agent 必须运行任务",
    ),
    "operator_adopts": (
        "only an operator adopts the Ray jobs of others",
        "只有运维可以接管他人的 Ray 作业",
    ),
    "whole_operator_adopts": (
        "only an operator of the whole scheduler adopts Ray jobs",
        "只有整个调度器的运维可以接管 Ray 作业",
    ),
    "token_submits_to": (
        "token {token!r} submits to the pools {pools:, } only",
        "令牌 {token!r} 只能提交到资源池 {pools:、}",
    ),
    "agent_of_other": (
        "agent {agent!r} is for task {task!r} of {owner!r}",
        "agent {agent!r} 属于 {owner!r} 的任务 {task!r}",
    ),
    "token_of_owner": (
        "token {token!r} is for tasks of {owner!r}, not of {other!r}",
        "令牌 {token!r} 只能用于 {owner!r} 的任务，不能用于 {other!r} 的任务",
    ),
    "token_label_values": (
        "the values of label {label!r} for token {token!r} are {allowed}, not {value!r}",
        "令牌 {token!r} 的标签 {label!r} 只能取 {allowed}，不能取 {value!r}",
    ),
    "no_label_value": ("none", "空"),
    "token_max_preemptions": (
        "token {token!r} asks for max_preemptions of at least {least}, not {most}",
        "令牌 {token!r} 的 max_preemptions 至少为 {least}，不能为 {most}",
    ),
    "token_of_pools": (
        "token {token!r} is for the pools {pools:, } only",
        "令牌 {token!r} 只能用于资源池 {pools:、}",
    ),
    "token_priorities": (
        "token {token!r} is for priorities up to {most:g}, not {priority:g}",
        "令牌 {token!r} 的优先级不能超过 {most:g}，而这里是 {priority:g}",
    ),
    "task_of_other": (
        "task {task!r} is not one of {owner!r}",
        "任务 {task!r} 不属于 {owner!r}",
    ),
    "named_pools": ("the {count:pool|pools} {pools:, }", "{count:资源池|资源池} {pools:、}"),
    "token_not_for": (
        "token {token!r} is for {pools} only, not for {what}",
        "令牌 {token!r} 只能用于{pools}，不能用于{what}",
    ),
    "what_node": ("a node", "节点"),
    "what_unnamed_pool": ("a pool that is not named", "没有写明名称的资源池"),
    "what_unknown_pool": (
        "pool {pool!r}, which does not exist",
        "不存在的资源池 {pool!r}",
    ),
    "what_task": ("task {task!r}", "任务 {task!r}"),
    "what_pool": ("pool {pool!r}", "资源池 {pool!r}"),
    "what_no_pool": ("what is in no pool", "不属于任何资源池的内容"),
    "no_node_now": ("there is no node {node!r} now", "现在没有节点 {node!r}"),
    "no_pool_now": ("there is no pool {pool!r} now", "现在没有资源池 {pool!r}"),
    "no_token_now": ("there is no token {token!r} now", "现在没有令牌 {token!r}"),
    "no_token_of_user": (
        (
            "there is no valid token for user {user!r}; an operator issues one with: schedulemesh tokens "
            "create {token} --role viewer"
        ),
        (
            "用户 {user!r} 没有有效的令牌；运维人员可以执行以下命令签发：schedulemesh tokens create {token} "
            "--role viewer"
        ),
    ),
    "header_given_twice": (
        "the header {header} is given more than once",
        "请求头 {header} 出现了多次",
    ),
    "form_unreadable": ("the form cannot be read", "无法解析提交的表单"),
    "whole_operator_changes": (
        (
            "only an operator of the whole scheduler changes {others:, } of a pool; those of {pools} change "
            "{fields:, }"
        ),
        "只有整个调度器的运维可以修改资源池的 {others:、}；{pools}的运维可以修改 {fields:、}",
    ),
}
