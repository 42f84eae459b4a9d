"""Tokens: who may call the scheduler, in which role, and within which limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from schedulemesh.domain.names import as_text, parse_key, parse_name
from schedulemesh.domain.numbers import (
    LATEST_S,
    MAX_DURATION_S,
    as_seconds,
    parse_count,
    parse_number,
    parse_positive,
    parse_priority,
)
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.errors import InvalidRequestError, shown

#: The name of the token that a scheduler's HTTP API makes for its own machine.
LOCAL = "local"

#: The most tokens that a scheduler has, those that have expired included, and the most pools that one names.
MAX_TOKENS, MAX_POOLS_OF_TOKEN = 1_000, 1_000
#: The most keys and values of its labels.
MAX_LABEL_VALUES = 1_000


class Role(str, Enum):
    """What the holder of a token may do. Each role may do what those before it may."""

    #: Look at everything, except for results and saved states.
    VIEWER = "viewer"
    #: Submit tasks, and change and cancel those of the same owner.
    SUBMITTER = "submitter"
    #: Everything in the pools that the token names, and nothing elsewhere: a team's lead.
    POOL_OPERATOR = "pool_operator"
    #: Everything.
    OPERATOR = "operator"

    @property
    def rank(self) -> int:
        """Its place in their order: the lowest may do least."""
        return _RANKS[self]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class TokenSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as it is recorded: its secret is known to its holder only."""

    name: str
    role: Role
    #: The SHA-256 of the secret in hex.
    secret_hash: str
    #: Of a submitter: the pools that it may submit to; empty: all. Of a pool operator: its pools.
    pools: tuple[str, ...] = ()
    #: Of both: the highest priority of their tasks; None: any.
    max_priority: float | None = None
    #: Of both: the pools whose tasks their tasks may evict; None: any, as the policy says, and of a pool
    #: operator its pools.
    evict_pools: tuple[str, ...] | None = None
    #: Of a submitter: the values that labels of its tasks may have, by key, so that they neither evict others
    #: nor are protected by a label that is not theirs; other keys may have any value.
    label_values: dict[str, tuple[str, ...]] = {}
    #: Of a submitter: its tasks ask for no lower ``max_preemptions``, which would protect them; None: any.
    least_max_preemptions: int | None = None
    #: Of a submitter: the owner of its tasks.
    owner: str = ""
    #: In seconds since 1970, and by whom.
    created_at: float = 0.0
    created_by: str = ""
    #: In seconds since 1970; None: never.
    expires_at: float | None = None

    @property
    def lasting_operator(self) -> bool:
        """Whether it is an operator's and does not expire."""
        return self.role is Role.OPERATOR and self.expires_at is None

    def valid(self, now: float) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


def needs_role(token: str, role: Role, least: Role) -> Sentence:
    """The sentence that something needs another role than this one, which is that of a token."""
    return say("beyond_role", token=token, role=role.value, least=least.value)


def parse_role(value: object) -> Role:
    """A role by its name. Raises InvalidRequestError."""
    word = as_text(value)
    if word not in list(Role):
        allowed = ", ".join(role.value for role in Role)
        raise InvalidRequestError(f"role is {shown(value)}; allowed are {allowed}")
    return Role(word)


def check_token(spec: TokenSpec) -> None:
    """Raise InvalidRequestError for a token with a malformed field, or that contradicts itself."""
    parse_name(spec.name, "the token's name")
    parse_key(spec.secret_hash, "the hash of the token's secret")
    check_limits(spec.pools, spec.max_priority, spec.owner, spec.expires_at)
    check_eviction_limits(spec.evict_pools, spec.label_values, spec.least_max_preemptions)
    error = contradiction(spec)
    if error is not None:
        raise InvalidRequestError(error)


def check_limits(
    pools: Iterable[object], max_priority: object, owner: object, expires_at: object
) -> None:
    """Raise InvalidRequestError for a malformed limit; an owner may be empty, and the numbers None."""
    names = tuple(pools)
    if len(names) > MAX_POOLS_OF_TOKEN:
        raise InvalidRequestError(
            f"a token names up to {MAX_POOLS_OF_TOKEN:,} pools, not {len(names):,}"
        )
    for pool in names:
        parse_name(pool, "the pool's name")
    if max_priority is not None:
        parse_priority(max_priority, "max_priority")
    if owner != "":
        parse_name(owner, "owner")
    if expires_at is not None:
        parse_number(expires_at, "expires_at", 0.0, LATEST_S)


def check_eviction_limits(
    evict_pools: Iterable[object] | None,
    label_values: Mapping[str, Sequence[object]],
    least_max_preemptions: object,
) -> None:
    """Raise InvalidRequestError for a malformed limit of what its tasks may evict, and of how they are
    protected.
    """
    check_limits(() if evict_pools is None else evict_pools, None, "", None)
    if len(label_values) + sum(map(len, label_values.values())) > MAX_LABEL_VALUES:
        raise InvalidRequestError(
            f"label_values has more than {MAX_LABEL_VALUES:,} keys and values"
        )
    for key, values in label_values.items():
        parse_name(key, "each key of label_values")
        for value in values:
            parse_name(value, f"each value of label_values[{key!r}]")
    if least_max_preemptions is not None:
        parse_count(least_max_preemptions, "least_max_preemptions")


def contradiction(spec: TokenSpec) -> str | None:
    """How the limits of a token contradict its role; None: they do not."""
    limits = (spec.max_priority, spec.evict_pools, spec.least_max_preemptions)
    limited = spec.pools or spec.owner or spec.label_values or limits != (None, None, None)
    if spec.role is Role.SUBMITTER and not spec.owner:
        return "a submitter's token needs the owner of its tasks"
    if spec.role is Role.POOL_OPERATOR:
        return _contradiction_of_pool_operator(spec)
    if spec.role is not Role.SUBMITTER and limited:
        return (
            "owner, pools, max_priority, evict_pools, label_values and least_max_preemptions limit "
            f"submitters, not the role {spec.role.value}"
        )
    return None


def _contradiction_of_pool_operator(spec: TokenSpec) -> str | None:
    if not spec.pools:
        return "a pool operator's token needs the pools that it is for"
    if spec.owner or spec.label_values or spec.least_max_preemptions is not None:
        return (
            "owner, label_values and least_max_preemptions limit submitters; a pool operator has pools, "
            "max_priority and evict_pools"
        )
    return None


def parse_lifetime(lifetime: object) -> float | None:
    """The seconds after which a token expires; None: it does not. Raises InvalidRequestError."""
    return (
        None
        if lifetime is None
        else parse_positive(as_seconds(lifetime, "expires_in"), "expires_in", MAX_DURATION_S)
    )
