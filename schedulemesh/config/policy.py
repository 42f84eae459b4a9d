"""The preemption policy: thresholds, label rules and time limits, and how they are changed."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from schedulemesh.config.changes import check_names, with_changes
from schedulemesh.config.label_rules import (
    MAX_STORED_RULES,
    LabelRules,
    check_number_of_rules,
    parse_label_rules,
)
from schedulemesh.domain.containers import as_elements, plain_data
from schedulemesh.domain.kinds import is_a
from schedulemesh.domain.links import parse_links
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.numbers import (
    MAX_PRIORITY,
    MAX_TIMEOUT_S,
    as_seconds,
    parse_count,
    parse_duration,
    parse_flag,
    parse_number,
    parse_positive,
)
from schedulemesh.domain.payloads import parse_over_claim
from schedulemesh.domain.priorities import PRIORITY_CLASSES
from schedulemesh.domain.topology import parse_levels
from schedulemesh.errors import InvalidRequestError, shown

logger = logging.getLogger(__name__)


class PreemptionAggressiveness(str, Enum):
    """How readily running tasks are evicted, as a pair of thresholds."""

    #: Label threshold 0.1, same-pool threshold 0.5: fast response, tasks that can stop at any time.
    HIGH = "high"
    #: 0.5 and 1.0: the default, between throughput and stability.
    MEDIUM = "medium"
    #: 1.0 and 3.0: favours running tasks.
    LOW = "low"

    @property
    def thresholds(self) -> dict[str, float]:
        """The policy fields that this level sets."""
        label, same_pool = _LEVELS[self]
        return {"label_priority_threshold": label, "same_pool_priority_threshold": same_pool}


_LEVELS = {
    PreemptionAggressiveness.HIGH: (0.1, 0.5),
    PreemptionAggressiveness.MEDIUM: (0.5, 1.0),
    PreemptionAggressiveness.LOW: (1.0, 3.0),
}

_ALIASES = {
    "high": PreemptionAggressiveness.HIGH,
    "urgent": PreemptionAggressiveness.HIGH,
    "critical": PreemptionAggressiveness.HIGH,
    "prod": PreemptionAggressiveness.HIGH,
    "medium": PreemptionAggressiveness.MEDIUM,
    "default": PreemptionAggressiveness.MEDIUM,
    "normal": PreemptionAggressiveness.MEDIUM,
    "low": PreemptionAggressiveness.LOW,
    "background": PreemptionAggressiveness.LOW,
    "batch": PreemptionAggressiveness.LOW,
}

#: In which order candidates are taken as victims; see PreemptionPolicy.victim_order.
VICTIM_ORDERS = ("score", "priority_first", "least_lost_work")

#: So many own priority classes there may be.
MAX_CLASSES = 50

#: Seconds beside the time limits of the policy that a request may take.
_MARGIN_S = 120.0

#: No threshold is higher; it is above every difference of priorities.
MAX_THRESHOLD = 1e10
#: What a second of remaining time adds to a score at most.
MAX_WEIGHT = 1e6
#: Above the score of every candidate.
MAX_SCORE = 1e17
#: GPU-seconds of lost work per hour; above what any cluster can lose.
MAX_LOST_WORK = 1e12
#: Protected pools.
MAX_POOLS = 10_000

_THRESHOLDS = (
    "same_pool_priority_threshold",
    "cross_pool_priority_threshold",
    "label_priority_threshold",
)
_TIMEOUTS = ("cancel_timeout", "save_timeout", "start_timeout")
_DURATIONS = (
    "preemption_grace_s",
    "min_runtime",
    "preemption_cooldown",
    "idle_gpu_s",
    "over_claim_s",
    "defragment_after_s",
)
_SWITCHES = (
    "enable_cross_pool_preemption",
    "enable_label_preemption",
    "label_dominance_protects",
    "measured_progress",
    "reclaim_unsavable",
    "evict_despite_external_demand",
    "allow_exec",
)


class PreemptionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks may be evicted for which. Always valid; a change is a new policy.

    Thresholds are priority differences and must be above 0, so that if A may evict B, B may not evict A.
    An invalid value raises InvalidRequestError, a ValueError.
    """

    #: Minimum priority difference within one pool.
    same_pool_priority_threshold: float = 1.0
    #: Minimum priority difference across pools.
    cross_pool_priority_threshold: float = 5.0
    #: κ: what a second of remaining time adds to the score.
    remaining_time_weight: float = 0.1
    #: Which candidates are evicted first. "score": highest score. "priority_first": lowest priority, then
    #: highest score, so that remaining time never outweighs priority. "least_lost_work": fewest GPU-seconds
    #: since start or last saved state.
    victim_order: str = "score"
    #: Minimum score of a victim.
    min_preempt_score: float = 0.5
    #: Whether rule 4 (other pool) applies.
    enable_cross_pool_preemption: bool = True
    #: Pools whose tasks only their own pool's tasks may evict.
    protected_pools: tuple[str, ...] = ()
    #: {key: {high: (low, ...)}}: key=high may evict key=low, whatever the pools.
    label_preemption_rules: LabelRules = {}
    #: Minimum effective difference for a label match.
    label_priority_threshold: float = 0.5
    #: Whether label rules apply.
    enable_label_preemption: bool = True
    #: Whether a running task that dominates by label is protected from higher priorities.
    label_dominance_protects: bool = True
    #: Seconds that a victim's cancel() may take before its actor is killed.
    cancel_timeout: float = 5.0
    #: Seconds that saving a victim's state may take.
    save_timeout: float = 30.0
    #: Seconds that loading an agent's class and constructing the object may take.
    start_timeout: float = 120.0
    #: Seconds between a victim's notice and its eviction.
    preemption_grace_s: float = 0.0
    #: Seconds that a task runs before it may be evicted, from the start of its present run; 0: no limit.
    min_runtime: float = 0.0
    #: Evictions after which a task that is requeued is immune, unless the task names its own number. A task
    #: that is dropped is evicted once, so this limits it only if it is requeued.
    max_preemptions: int = 5
    #: Seconds after an eviction for a task of a pool during which no task is evicted for that pool; 0: none.
    preemption_cooldown: float = 0.0
    #: GPU-seconds of work that evictions may destroy per hour, in each pool whose tasks are evicted;
    #: 0: no limit.
    lost_work_budget: float = 0.0
    #: After how many seconds a loan of the past counts half in the shares of borrowers; 0: only present loans
    #: count.
    usage_half_life_s: float = 86400.0
    #: Whether a pool gets its lent quota back also from tasks that cannot save their state, whose work is
    #: lost then; otherwise it waits until they end.
    reclaim_unsavable: bool = True
    #: After how many seconds on a node a task may be moved to another one, so that a larger task of its pool,
    #: or of the pool that it borrows from, has room there; only tasks that can save their state are moved.
    #: 0: none is.
    defragment_after_s: float = 0.0
    #: GPUs of an agent that are used less than this, in per cent, for ``idle_gpu_s`` are idle: the agent is
    #: the first among the victims that the rules allow. 0: no GPUs are idle.
    idle_gpu_percent: float = 0.0
    #: Seconds.
    idle_gpu_s: float = 600.0
    #: Whether the ``progress`` that a task reports says when it ends, in place of its estimated duration.
    measured_progress: bool = False
    #: What happens to a job whose drivers hold more in Ray than it claims. "warn": it is warned of. "end": it
    #: is ended when it has done so for ``over_claim_s``. A job may say otherwise for itself.
    over_claim: str = "warn"
    #: Seconds.
    over_claim_s: float = 60.0
    #: Whether tasks are evicted although actors or placement groups that do not belong to the scheduler wait
    #: in Ray and would get the freed room first.
    evict_despite_external_demand: bool = False
    #: Whether commands and terminals may be started inside the claims of tasks and leases (``exec``,
    #: ``shell``).
    allow_exec: bool = False
    #: The levels of the topology: keys of node labels, the widest first.
    topology_levels: tuple[str, ...] = ()
    #: {name: priority}: own priority classes, the highest first, beside those that there always are.
    priority_classes: dict[str, float] = {}
    #: {name: address}: links from tasks to pages elsewhere, with fields such as {task} and {label.run}.
    links: dict[str, str] = {}

    def __post_init__(self) -> None:
        force = msgspec.structs.force_setattr
        for name in _THRESHOLDS:
            force(self, name, parse_positive(getattr(self, name), name, MAX_THRESHOLD))
        for name in _TIMEOUTS:
            seconds = as_seconds(getattr(self, name), name)
            force(self, name, parse_positive(seconds, name, MAX_TIMEOUT_S))
        for name in _DURATIONS:
            seconds = as_seconds(getattr(self, name), name)
            force(self, name, parse_number(seconds, name, 0.0, MAX_TIMEOUT_S))
        half_life_s = parse_duration(self.usage_half_life_s, "usage_half_life_s")
        force(self, "usage_half_life_s", half_life_s)
        force(self, "max_preemptions", parse_count(self.max_preemptions, "max_preemptions", 1))
        force(self, "lost_work_budget", _number(self, "lost_work_budget", 0.0, MAX_LOST_WORK))
        force(self, "idle_gpu_percent", _number(self, "idle_gpu_percent", 0.0, 100.0))
        weight = _number(self, "remaining_time_weight", 0.0, MAX_WEIGHT)
        force(self, "remaining_time_weight", weight)
        force(self, "min_preempt_score", _number(self, "min_preempt_score", -MAX_SCORE, MAX_SCORE))
        for name in _SWITCHES:
            force(self, name, parse_flag(getattr(self, name), name))
        force(self, "over_claim", parse_over_claim(self.over_claim))
        force(self, "victim_order", _parse_order(self.victim_order))
        force(self, "protected_pools", _parse_pools(self.protected_pools))
        rules = parse_label_rules(self.label_preemption_rules, MAX_STORED_RULES)
        force(self, "label_preemption_rules", rules)
        levels = parse_levels(self.topology_levels, "topology_levels")
        force(self, "topology_levels", levels)
        force(self, "priority_classes", _parse_classes(self.priority_classes))
        force(self, "links", parse_links(self.links))

    @property
    def longest_s(self) -> float:
        """Seconds within which every request returns: notice, save and cancel of the victims, the probe of a
        class, two attempts to start, and a margin for Ray and the journal.
        """
        leaving = self.preemption_grace_s + self.save_timeout + self.cancel_timeout
        return leaving + 3 * self.start_timeout + _MARGIN_S

    def protects(self, pool_name: str) -> bool:
        """Whether tasks of a pool are evicted for tasks of the same pool only."""
        pools = self.protected_pools  # sorted
        index = bisect_left(pools, pool_name)
        return index < len(pools) and pools[index] == pool_name

    def public(self) -> dict[str, Any]:
        """Every field as plain data: numbers, lists and dicts."""
        shown = msgspec.structs.asdict(self)
        shown["protected_pools"] = list(self.protected_pools)
        shown["topology_levels"] = list(self.topology_levels)
        shown["priority_classes"] = dict(self.priority_classes)
        shown["links"] = dict(self.links)
        shown["label_preemption_rules"] = {
            key: {high: list(lows) for high, lows in rules.items()}
            for key, rules in self.label_preemption_rules.items()
        }
        return shown


def changed_policy(policy: PreemptionPolicy, changes: Mapping[str, Any]) -> PreemptionPolicy:
    """The policy with these fields changed. Raises InvalidRequestError for unknown fields and bad values."""
    if (rules := changes.get("label_preemption_rules")) is not None:
        check_number_of_rules(rules)
    return with_changes(policy, changes, "the preemption policy")


def resolve_changes(
    arguments: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[dict[str, Any], str | None]:
    """The policy fields that a call changes, and the aggressiveness level it named, if any.

    Arguments that are None are not given. ``preemption_aggressiveness`` becomes two thresholds; an
    explicit threshold in the same call wins. ``env:NAME`` is looked up in ``environ``.

    Raises InvalidRequestError for unknown fields, also where they are None, and for an unknown level.
    """
    names = (*PreemptionPolicy.__struct_fields__, "preemption_aggressiveness")
    check_names(arguments, names, "the preemption policy")
    changes = {name: value for name, value in arguments.items() if value is not None}
    level = parse_aggressiveness(changes.pop("preemption_aggressiveness", None), environ)
    if level is None:
        return changes, None
    return {**level.thresholds, **changes}, level.value


def parse_aggressiveness(
    raw: object, environ: Mapping[str, str]
) -> PreemptionAggressiveness | None:
    """The level that an enum member, a name, an alias or ``env:NAME`` stands for.

    A missing or bad environment variable logs a warning and gives None, which changes nothing; any
    other unknown value raises InvalidRequestError with the accepted ones.
    """
    if raw is None or is_a(raw, PreemptionAggressiveness):
        return raw
    word = as_text(raw)
    if word is not None and word.lower().startswith("env:"):
        return _from_environment(word[4:].strip(), environ)
    level = None if word is None else _ALIASES.get(word.strip().lower())
    if level is None:
        raise InvalidRequestError(
            f"preemption_aggressiveness is {shown(raw)}; allowed are {', '.join(_ALIASES)}, env:NAME "
            "and the members of PreemptionAggressiveness"
        )
    logger.info("preemption_aggressiveness %r means %s", word, level.name)
    return level


def _from_environment(name: str, environ: Mapping[str, str]) -> PreemptionAggressiveness | None:
    value = environ.get(name)
    level = _ALIASES.get(value.strip().lower()) if value is not None else None
    if level is not None:
        logger.info("preemption_aggressiveness from %s=%r means %s", name, value, level.name)
        return level
    problem = "is not set" if value is None else f"is {value!r}"
    logger.warning(
        "environment variable %s %s; preemption_aggressiveness stays as it was (allowed: %s)",
        name,
        problem,
        ", ".join(_ALIASES),
    )
    return None


def _number(policy: PreemptionPolicy, name: str, least: float, most: float) -> float:
    return parse_number(getattr(policy, name), name, least, most)


def _parse_order(value: object) -> str:
    order = as_text(value)
    if order not in VICTIM_ORDERS:
        raise InvalidRequestError(
            f"victim_order is {shown(value)}; allowed are {', '.join(VICTIM_ORDERS)}"
        )
    return order


def _parse_pools(value: object) -> tuple[str, ...]:
    pools = as_elements(value, "protected_pools", "a list of pool names", sets=True)
    if len(pools) > MAX_POOLS:
        raise InvalidRequestError(f"protected_pools has more than {MAX_POOLS} names")
    return tuple(sorted({parse_name(name, "each of protected_pools") for name in pools}))


def _parse_classes(value: object) -> dict[str, float]:
    """Own priority classes by name, the highest first."""
    classes = plain_data(value, "priority_classes")
    if not isinstance(classes, Mapping) or len(classes) > MAX_CLASSES:
        raise InvalidRequestError(
            f"priority_classes is {shown(value)}; it is a dict of up to {MAX_CLASSES} names and priorities, "
            "such as {'urgent': 8, 'nightly': 0.3}"
        )
    parsed = {
        _parse_class_name(name): parse_number(
            number, f"class {name!r}", -MAX_PRIORITY, MAX_PRIORITY
        )
        for name, number in classes.items()
    }
    return dict(sorted(parsed.items(), key=lambda entry: (-entry[1], entry[0])))


def _parse_class_name(name: object) -> str:
    """The name of an own class: none of those that there always are, and nothing like a number."""
    text = parse_name(name, "the name of a priority class")
    if text in PRIORITY_CLASSES:
        raise InvalidRequestError(
            f"priority_classes names {text!r}, which is {PRIORITY_CLASSES[text]:g} everywhere; give yours "
            "another name"
        )
    if _reads_as_number(text):
        raise InvalidRequestError(
            f"priority_classes names {text!r}, which is a number; give the class a name"
        )
    return text


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
