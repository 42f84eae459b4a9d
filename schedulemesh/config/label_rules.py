"""Label rules ``{key: {high: (low, ...)}}``: validation, and the rank of each pair.

The rank of a pair is the length of the longest chain of rules from the high value down to the low one.
Validation and decisions use the same ranks, so rules that are accepted can also be used.

The values of a key form a directed acyclic graph. Its ranks are computed without recursion, from the bottom
up, with sets of values as bits of integers. A rule that no other chain bypasses has rank 1. The others are
looked up along those rules only, because a longest chain never uses a rule that can be bypassed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from functools import lru_cache
from types import MappingProxyType

from schedulemesh.domain.containers import as_elements, as_items
from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError, shown

#: Pairs (high, low) of all rules together that a policy may be given, and that one in a journal may have:
#: earlier versions took so many.
MAX_RULES, MAX_STORED_RULES = 2_000, 100_000

LabelRules = dict[str, dict[str, tuple[str, ...]]]
#: {(high, low): rank} for the pairs of one key.
Ranks = Mapping[tuple[str, str], int]

#: Rules of one key as a hashable value.
_Pairs = tuple[tuple[str, tuple[str, ...]], ...]


def parse_label_rules(raw: object, most: int = MAX_RULES) -> LabelRules:
    """The rules in their stored form; anything else raises InvalidRequestError, cycles and more than ``most``
    pairs too.
    """
    rules: LabelRules = {}
    by_key = as_items(raw, "label_preemption_rules", "a dict")
    _check_number(len(by_key), most)
    count = 0
    for key, of_key in by_key:
        name = parse_name(key, "each key of label_preemption_rules")
        what = f"label_preemption_rules[{name!r}]"
        by_high = as_items(of_key, what, "a dict {high: [low, ...]}")
        _check_number(len(by_high), most)
        rules[name] = {
            parse_name(high, f"each label value of {what}"): _parse_lows(
                lows, f"{what}[{shown(high)}]", most
            )
            for high, lows in by_high
        }
        # A value without pairs counts as one, too.
        count += sum(len(lows) or 1 for lows in rules[name].values())
        _check_number(count, most)
    for name, of_name in rules.items():
        try:
            ranks_of(of_name)
        except CycleError as error:
            raise InvalidRequestError(f"label_preemption_rules[{name!r}] has a {error}") from None
    return rules


def check_number_of_rules(raw: object) -> None:
    """Raise InvalidRequestError for more than ``MAX_RULES`` pairs; nothing else of the rules is checked."""
    if not isinstance(raw, dict):
        return
    _check_number(len(raw), MAX_RULES)
    by_high = (
        lows for of_key in raw.values() if isinstance(of_key, dict) for lows in of_key.values()
    )
    _check_number(sum(len(lows) or 1 for lows in by_high if isinstance(lows, Sized)), MAX_RULES)


def _check_number(count: int, most: int) -> None:
    if count > most:
        raise InvalidRequestError(f"label_preemption_rules has more than {most:,} pairs")


def ranks_of(rules: Mapping[str, tuple[str, ...]]) -> Ranks:
    """The rank of each pair of one key's rules; a cycle raises CycleError. Of rules that form chains it is
    remembered, if they are recent; where none begins at the low value of another one, all ranks are 1.
    """
    if not any(low in rules for lows in rules.values() for low in lows):
        return {(high, low): 1 for high, lows in rules.items() for low in lows}
    return _ranks_of(tuple((high, tuple(lows)) for high, lows in rules.items()))


class CycleError(ValueError):
    """The rules lead from a value back to itself; the text shows the chain."""


def _parse_lows(raw: object, what: str, most: int) -> tuple[str, ...]:
    lows = as_elements(raw, what, "a list of label values", sets=True)
    _check_number(len(lows), most)
    texts = [parse_name(low, f"each label value of {what}") for low in lows]
    return tuple(sorted(texts) if isinstance(raw, set | frozenset) else texts)


@lru_cache(maxsize=64)
def _ranks_of(pairs: _Pairs) -> Ranks:
    return MappingProxyType(_Graph(dict(pairs)).ranks())


class _Graph:
    """The values of one key, the lowest first."""

    def __init__(self, rules: Mapping[str, tuple[str, ...]]) -> None:
        self._rules = rules
        #: The highs of each value.
        self._above: dict[str, list[str]] = {value: [] for value in _values(rules)}
        for high, lows in rules.items():
            for low in lows:
                self._above[low].append(high)
        #: The length of the longest chain below each value, from the bottom up.
        self._height = self._heights()
        #: The bit of each value that is the low value of several rules; to the others there is only one path.
        several = (value for value, highs in self._above.items() if len(highs) > 1)
        self._bit = {value: 1 << i for i, value in enumerate(several)}

    def ranks(self) -> dict[tuple[str, str], int]:
        """The rank of each pair."""
        ranks: dict[tuple[str, str], int] = {}
        direct: dict[str, list[str]] = {}
        #: The low values whose rank is not known yet, by high value.
        pending: dict[str, int] = {}
        #: The values below each value, and those of them that are reached by a longest chain.
        below: dict[str, int] = {}
        straight: dict[str, int] = {}
        height, bit = self._height, self._bit
        for high in height:
            under = level = 0
            for low in sorted(self._rules.get(high, ()), key=height.__getitem__, reverse=True):
                own_bit = bit.get(low, 0)
                if not under & own_bit:
                    ranks[high, low] = 1
                    direct.setdefault(high, []).append(low)
                    under |= own_bit | below[low]
                    if height[low] == height[high] - 1:
                        level |= own_bit | straight[low]
                elif level & own_bit:
                    ranks[high, low] = height[high] - height[low]
                else:
                    pending[high] = pending.get(high, 0) | own_bit
            below[high], straight[high] = under, level
        self._lengthen(direct, below, pending, ranks)
        return ranks

    def _lengthen(
        self,
        direct: Mapping[str, list[str]],
        below: Mapping[str, int],
        pending: dict[str, int],
        ranks: dict[tuple[str, str], int],
    ) -> None:
        """Find the wanted ranks: let chains of direct rules grow by one rule at a time; the rank of a pair is
        one less than the length at which no chain leads there any more.
        """
        height, bit = self._height, self._bit
        #: What chains of at least ``length`` rules lead to.
        ends = {value: below[value] | bit.get(value, 0) for value in height}
        length = 0
        while pending:
            length += 1
            longer = {}
            for high, lows in direct.items():
                if height[high] >= length:
                    union = 0
                    for low in lows:
                        union |= ends.get(low, 0)
                    longer[high] = union
            ends = longer
            for high, mask in list(pending.items()):
                lost = mask & ~ends.get(high, 0)
                if lost:
                    for low in self._rules[high]:
                        if lost & bit.get(low, 0):
                            ranks[high, low] = length - 1
                    pending[high] = mask & ~lost
                    if not pending[high]:
                        del pending[high]

    def _heights(self) -> dict[str, int]:
        """The height of each value, the lowest first."""
        open_lows = {value: len(self._rules.get(value, ())) for value in self._above}
        height = dict.fromkeys(open_lows, 0)
        order = [value for value, lows in open_lows.items() if not lows]
        for value in order:
            for high in self._above[value]:
                height[high] = max(height[high], height[value] + 1)
                open_lows[high] -= 1
                if not open_lows[high]:
                    order.append(high)
        if len(order) < len(height):
            raise CycleError(f"cycle: {_cycle(self._rules, open_lows)}")
        return {value: height[value] for value in order}


def _values(rules: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    yield from rules
    for lows in rules.values():
        yield from lows


def _cycle(rules: Mapping[str, tuple[str, ...]], open_lows: Mapping[str, int]) -> str:
    """The first cycle, as ``a > b > a``: every value that has lows left to do has one that has, too."""
    value = next(value for value, lows in open_lows.items() if lows)
    path: dict[str, None] = {}
    while value not in path:
        path[value] = None
        value = next(low for low in rules[value] if open_lows[low])
    chain = list(path)
    return " > ".join((*chain[chain.index(value) :], value))
