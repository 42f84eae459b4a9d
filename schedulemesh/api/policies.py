"""The preemption policy, and the policy of the queue."""

from __future__ import annotations

from typing import Any, ClassVar

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import get
from schedulemesh.api.values import ClientName, Name


class ChangePolicy(ChangingCall, tag="change_policy", frozen=True, kw_only=True):
    """Change these fields of the policy."""

    changes: dict[str, Any]
    client: ClientName
    #: The word for all of them together, as ``preemption_aggressiveness``; None: none was given.
    level: Name | None = None


class GetPolicy(Call, tag="get_policy", frozen=True, kw_only=True):
    """Get the current policy and its most recent changes."""

    routes: ClassVar = (get("/policy", "Read the preemption policy and its most recent changes"),)


class ChangeQueuePolicy(ChangingCall, tag="change_queue_policy", frozen=True, kw_only=True):
    """Change these fields of the queue's policy."""

    changes: dict[str, Any]
    client: ClientName


class GetQueuePolicy(Call, tag="get_queue_policy", frozen=True, kw_only=True):
    """Get the current policy of the queue."""

    routes: ClassVar = (get("/queue_policy", "Read the policy of the queue"),)
