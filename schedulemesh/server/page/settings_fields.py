"""Fields of policies and pools as they are shown and entered: their values now, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy, GetPolicy, GetQueuePolicy
from schedulemesh.api.pools import ResizePool
from schedulemesh.config.changes import without_null
from schedulemesh.config.policy import PreemptionPolicy, changed_policy, resolve_changes
from schedulemesh.config.pools import parse_changes, parse_lending
from schedulemesh.config.queueing import QueuePolicy, changed_queue_policy
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.protocol import public
from schedulemesh.server.listings import Row
from schedulemesh.server.page.entries import InvalidEntryError
from schedulemesh.server.page.reads import ScreenReads, together

#: The names of the policies.
PREEMPTION, QUEUE = "preemption", "queue"
POLICIES = (PREEMPTION, QUEUE)
#: The fields of a pool that are changed here; its quota has a form of its own.
POOL_FIELDS = (
    "cohort",
    "weight",
    "lending_limit",
    "borrowing_limit",
    "queueing",
    "on_preempted",
    "max_run_s",
    "default_max_run_s",
    "idle_s",
    "min_priority",
    "max_priority",
    "owner_limits",
    "owner_order",
    "budget",
    "owner_budgets",
    "flavors",
)
_LENDING = POOL_FIELDS[:4]
#: What stands for no value.
_NONE = "none"
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    PREEMPTION: PreemptionPolicy().public(),
    QUEUE: QueuePolicy().public(),
}
_POOL_DEFAULTS: Mapping[str, Any] = public.pool_definition(PoolSpec(name="default"))


class SettingsField(NamedTuple):
    """A field with its values as text."""

    name: str
    now: str
    default: str
    #: None: nothing was entered.
    entered: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether it has its default."""
        return self.now == self.default

    @property
    def is_changed(self) -> bool:
        """Whether something else was entered than it has."""
        return self.entered is not None and self.entered != self.now


def written(value: Any) -> str:
    """A value as it is entered: texts as they are, all else as JSON."""
    if value is None:
        return _NONE
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def entered_value(text: str) -> Any:
    """What a text stands for: JSON, else the text itself."""
    if text == _NONE:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


async def policy_fields(
    reader: ScreenReads, entered: Mapping[str, str] | None = None
) -> dict[str, list[SettingsField]]:
    """The fields of both policies. ``entered``: by the name of the field."""
    preemption, queue = await together(reader.facts(GetPolicy()), reader.facts(GetQueuePolicy()))
    now = {PREEMPTION: preemption["policy"], QUEUE: queue["policy"]}
    return {
        name: [
            _field(field, fields.get(field), default, entered)
            for field, default in _DEFAULTS[name].items()
        ]
        for name, fields in now.items()
    }


def pool_fields(pool: Row, entered: Mapping[str, str] | None = None) -> list[SettingsField]:
    """The fields of a pool that are changed here."""
    return [_field(name, pool.get(name), _POOL_DEFAULTS.get(name), entered) for name in POOL_FIELDS]


def _field(name: str, now: Any, default: Any, entered: Mapping[str, str] | None) -> SettingsField:
    text = None if entered is None else entered.get(name)
    if text is not None:
        # As it is written here, so that 1.0 is no other value than 1.
        text = written(_as_now(entered_value(text), now))
    return SettingsField(name, written(now), written(default), text)


def _as_now(value: Any, now: Any) -> Any:
    """The value that a field has where what was entered is equal to it."""
    return now if value == now and not isinstance(value, bool) else value


def policy_call(
    name: str, entered: Mapping[str, str], client: str, request_id: str
) -> ChangePolicy | ChangeQueuePolicy:
    """The change of a policy. Raises InvalidRequestError for a name or a value that cannot be."""
    values = {field: entered_value(text) for field, text in entered.items()}
    if name == PREEMPTION:
        default = PreemptionPolicy()
        unknown = set(values) - set(default.__struct_fields__)
        if not unknown:
            resolved, _ = resolve_changes(without_null(values, default), {})
            checked = changed_policy(default, resolved).public()
            return ChangePolicy(
                changes={field: checked[field] for field in resolved},
                client=client,
                request_id=request_id,
            )
        raise InvalidEntryError("wrong_policy_field", value=min(unknown))
    if name == QUEUE:
        changes = without_null(values, QueuePolicy())
        checked = changed_queue_policy(QueuePolicy(), changes).public()
        return ChangeQueuePolicy(
            changes={field: checked[field] for field in changes},
            client=client,
            request_id=request_id,
        )
    raise InvalidEntryError("wrong_policy", value=name, allowed=", ".join(POLICIES))


def pool_call(name: str, entered: Mapping[str, str], request_id: str) -> ResizePool:
    """The change of a pool. Raises InvalidRequestError for a field or a value that cannot be."""
    unknown = sorted(set(entered) - set(POOL_FIELDS))
    if unknown:
        raise InvalidEntryError(
            "wrong_pool_field", value=unknown[0], allowed=", ".join(POOL_FIELDS)
        )
    values = {field: entered_value(text) for field, text in entered.items()}
    lending = {field: values.pop(field) for field in _LENDING if field in values}
    changes: dict[str, Any] = {**parse_changes(values)}
    return ResizePool(name=name, lending=parse_lending(lending), request_id=request_id, **changes)
