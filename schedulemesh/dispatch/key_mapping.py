"""Names of stored tensors for tensors of a model: the same, renamed, slices, or several joined.

A rule gives for the name of a tensor what it consists of. In names, ``*`` stands for a text without dots,
such as the number of a layer, and ``**`` for any text, in stored names that rules without ``**`` do not take.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Union

import msgspec

from schedulemesh.errors import InvalidRequestError

_STAR = re.compile(r"\*\*?")
_EXPRESSIONS = {"*": "([^.]+)", "**": "(.+)"}


class Slice(msgspec.Struct, frozen=True, tag=True):
    """A stored tensor's elements ``start`` to ``stop`` of one dim."""

    #: The name of the stored tensor.
    key: str
    #: One past the last element; None: up to the end of the dim.
    stop: int | None = None
    start: int = 0
    #: The dim, from 0; negative ones count from the last.
    dim: int = 0


class Concat(msgspec.Struct, frozen=True, tag=True):
    """Stored tensors, or slices of them, one after another along one dim."""

    parts: tuple[Source, ...]
    #: The dim, from 0; negative ones count from the last.
    dim: int = 0


#: What a tensor consists of; a text is the name of a whole stored tensor.
Source = Union[str, Slice, Concat]


def expanded(
    mapping: Mapping[str, Source], keys: Iterable[str], needed: Iterable[str]
) -> dict[str, Source]:
    """The mapping without patterns: a rule with ``*`` once for each text that the stored ``keys`` have there.

    ``**`` stands for texts in the keys that are ``needed``. Raises ``InvalidRequestError`` if two rules make
    one name, or a rule with ``*`` finds nothing.
    """
    rules: dict[str, Source] = {}
    origin: dict[str, str] = {}
    candidates = list(keys)
    for name, source in sorted(mapping.items(), key=lambda rule: "**" in rule[0]):
        if "**" in name:
            taken = set(chain.from_iterable(map(keys_of, rules.values())))
            candidates = [key for key in needed if key not in taken]
        for made, of in _bound(name, source, candidates):
            if made in rules:
                raise InvalidRequestError(
                    f"{made} is made by {origin[made]!r} and by {name!r}; allowed is once"
                )
            rules[made], origin[made] = of, name
    return rules


def fused_qkv(query: str, key: str, value: str, *, heads: int, groups: int, dim: int) -> Concat:
    """Megatron's fused attention weight or bias: for each group its query heads, one key and one value head.

    The arguments are the names of the separate tensors, the numbers of query heads and of key-value groups,
    and the size of a head.
    """
    per_group = _per_group(heads, groups) * dim
    return Concat(
        tuple(
            Slice(name, start=group * size, stop=(group + 1) * size)
            for group in range(groups)
            for name, size in ((query, per_group), (key, dim), (value, dim))
        )
    )


def separate_qkv(fused: str, *, heads: int, groups: int, dim: int) -> tuple[Concat, Concat, Concat]:
    """The query, key and value weight (or bias) of a fused one; the reverse of ``fused_qkv``."""
    queries = _per_group(heads, groups)
    sizes = {0: queries * dim, queries: dim, queries + 1: dim}
    query, key, value = (
        Concat(
            tuple(
                Slice(fused, start=first, stop=first + size)
                for group in range(groups)
                for first in [(group * (queries + 2) + before) * dim]
            )
        )
        for before, size in sizes.items()
    )
    return query, key, value


def _per_group(heads: int, groups: int) -> int:
    if groups < 1 or heads % groups:
        raise InvalidRequestError(f"{heads} heads do not make {groups} equal groups")
    return heads // groups


def matches(pattern: str, key: str) -> bool:
    """Whether a name is one that a pattern stands for."""
    return _expression(pattern).fullmatch(key) is not None


def keys_of(source: Source) -> Iterator[str]:
    """The stored tensors of a source."""
    if isinstance(source, str):
        yield source
    elif isinstance(source, Slice):
        yield source.key
    else:
        yield from chain.from_iterable(map(keys_of, source.parts))


def _bound(name: str, source: Source, keys: Iterable[str]) -> Iterator[tuple[str, Source]]:
    """The rule for each text that stands for its stars."""
    patterns = list(keys_of(source))
    stars = _STAR.findall(name)
    if any(_STAR.findall(each) != stars for each in patterns):
        raise InvalidRequestError(
            f"{name!r} has the stars {stars}, what it takes is {patterns}; allowed are the same stars in each"
        )
    if not stars:
        yield name, source
        return
    expressions = list(map(_expression, dict.fromkeys(patterns)))
    matches = (each.fullmatch(key) for each in expressions for key in keys)
    texts = dict.fromkeys(match.groups() for match in matches if match)
    if not texts and "**" not in stars:
        raise InvalidRequestError(f"{name!r} takes {patterns}, but no stored name is like that")
    for groups in texts:
        yield _filled(name, groups), _renamed(source, groups)


def _renamed(source: Source, groups: Sequence[str]) -> Source:
    if isinstance(source, str):
        return _filled(source, groups)
    if isinstance(source, Slice):
        return msgspec.structs.replace(source, key=_filled(source.key, groups))
    parts = tuple(_renamed(part, groups) for part in source.parts)
    return msgspec.structs.replace(source, parts=parts)


def _filled(pattern: str, groups: Sequence[str]) -> str:
    texts = iter(groups)
    return _STAR.sub(lambda _: next(texts), pattern)


def _expression(pattern: str) -> re.Pattern[str]:
    fixed = map(re.escape, _STAR.split(pattern))
    stars = (_EXPRESSIONS[star] for star in _STAR.findall(pattern))
    return re.compile("".join(chain.from_iterable(zip(fixed, (*stars, ""), strict=True))))
