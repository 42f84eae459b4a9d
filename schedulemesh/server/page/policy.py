"""The policies and the pools as they are defined, with what differs from the defaults and who changed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from schedulemesh.api.audit import MAX_ROWS, QueryAudit
from schedulemesh.api.policies import GetPolicy
from schedulemesh.api.pools import ListPools
from schedulemesh.domain.audit import DONE
from schedulemesh.server.listings import Row
from schedulemesh.server.page.actions import actions_of_policies, actions_of_pool
from schedulemesh.server.page.reads import ScreenReads, together
from schedulemesh.server.page.settings_fields import (
    PREEMPTION,
    policy_fields,
    pool_fields,
    written,
)

#: Changes of policies and pools, and how many of the last are shown.
_CALLS = frozenset(
    (
        "change_policy",
        "change_queue_policy",
        "create_pool",
        "ensure_pool",
        "resize_pool",
        "rename_pool",
        "delete_pool",
        "create_cohort",
        "ensure_cohort",
        "rename_cohort",
        "delete_cohort",
    )
)
_SHOWN = 30


class FieldChange(NamedTuple):
    """A field before and after a change, as text."""

    name: str
    before: str
    after: str


class DefinitionChange(NamedTuple):
    """A change of a policy or a pool."""

    at: float
    who: str
    call: str
    #: What was changed; empty: the call says it.
    subject: str
    fields: Sequence[FieldChange]


async def policy(reader: ScreenReads, _query: QueryParams) -> Mapping[str, Any]:
    """What the template ``policy.html`` shows; who may not read the record of changes sees the last changes
    of the preemption policy only.
    """
    fields, pools = await together(policy_fields(reader), reader.rows(ListPools()))
    if QueryAudit.allows(reader.caller.role):
        rows = await reader.rows(QueryAudit(outcome=DONE, limit=MAX_ROWS))
        changes = [recorded_change(row) for row in rows if row["call"] in _CALLS]
    else:
        facts = await reader.facts(GetPolicy())
        changes = [_policy_change(change) for change in reversed(facts["changes"])]
    return {
        "policies": fields,
        "policy_actions": actions_of_policies(reader.caller),
        "pools": [
            {
                **pool,
                "fields": [one for one in pool_fields(pool) if not one.is_default],
                "actions": actions_of_pool(reader.caller, pool),
            }
            for pool in sorted(pools, key=lambda pool: str(pool["name"]))
        ],
        "changes": changes[:_SHOWN],
    }


def recorded_change(row: Row) -> DefinitionChange:
    """A row of the record of changes with the fields that differ; none of what was made or deleted."""
    before, after = row["before"] or {}, row["after"] or {}
    if not (before and after):
        before = after = {}
    names = [name for name in (*before, *after) if before.get(name) != after.get(name)]
    fields = [
        FieldChange(name, written(before.get(name)), written(after.get(name)))
        for name in dict.fromkeys(names)
    ]
    request = row["request"]
    subject = str(request.get("name", "") or request.get("spec", {}).get("name", ""))
    return DefinitionChange(row["at"], row["who"], row["call"], subject, fields)


def _policy_change(change: Row) -> DefinitionChange:
    fields = [FieldChange(name, "", written(value)) for name, value in change["changes"].items()]
    at, client = change["timestamp"], change["client"]
    return DefinitionChange(at, client, "change_policy", PREEMPTION, fields)
