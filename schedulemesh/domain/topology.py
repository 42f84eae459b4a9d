"""Topology: levels of the network by node labels, and how close together a task asks to be placed.

A request is written as terms with commas between them: ``rack`` (required), ``preferred:rack``, and
``slice:8:rack`` (each 8 members in one rack). In this form it is passed on, stored and listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from schedulemesh.domain.containers import as_elements, as_fields
from schedulemesh.domain.names import as_text, is_name
from schedulemesh.domain.numbers import parse_count
from schedulemesh.errors import InvalidRequestError, shown

#: Levels that a policy may declare.
MAX_LEVELS = 8
_REQUIRED, _PREFERRED, _SLICE = "required", "preferred", "slice"
_FORM = "'rack', 'preferred:rack' and 'slice:8:rack', separated by commas"


class TopologyRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How close together the members of a task are to be placed."""

    #: The level of which all members are in one domain; empty: none.
    required: str = ""
    #: The level of which they are in one domain where there is one with room; empty: none.
    preferred: str = ""
    #: So many members, in their order, are in one domain of ``slice_level``; 0: there are no slices.
    slice_size: int = 0
    slice_level: str = ""

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that it names, each once."""
        named = (self.required, self.preferred, self.slice_level)
        return tuple(dict.fromkeys(level for level in named if level))

    def __str__(self) -> str:
        """The text that stands for it."""
        terms = [self.required] if self.required else []
        if self.preferred:
            terms.append(f"{_PREFERRED}:{self.preferred}")
        if self.slice_size:
            terms.append(f"{_SLICE}:{self.slice_size}:{self.slice_level}")
        return ",".join(terms)


class Topology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a request asks for with the levels that the policy declares; part of the shape of a group."""

    #: The labels of all levels, the widest first.
    levels: tuple[str, ...]
    required: str = ""
    preferred: str = ""
    slice_size: int = 0
    slice_level: str = ""

    @property
    def limit(self) -> int:
        """The index of the level of which one domain must hold all; -1: none."""
        return self.levels.index(self.required) if self.required else -1

    @property
    def target(self) -> int:
        """The index of the level of which one domain is tried first."""
        return self.levels.index(self.preferred or self.required or self.slice_level)

    @property
    def slice_at(self) -> int:
        """The index of the level of slices; -1: there are none."""
        return self.levels.index(self.slice_level) if self.slice_level else -1

    @property
    def narrowest(self) -> int:
        """The index of the level inside of whose domains the placement strategy chooses nodes."""
        return len(self.levels) - 1

    def domain_of(self, labels: Mapping[str, str], node_id: str, level: int) -> tuple[str, ...]:
        """The domain of a node at the level of this index, as the values of its labels from the widest level
        on. Without the level's label that is its domain at the next narrower level, or else the node alone.
        """
        if level < 0:
            return ()
        values = tuple(labels.get(label, "") for label in self.levels)
        for narrower in range(level, len(values)):
            if self.levels[narrower] in labels:
                return values[: narrower + 1]
        return (*values, node_id)

    def __str__(self) -> str:
        """As ``TopologyRequest``."""
        return str(
            TopologyRequest(
                required=self.required,
                preferred=self.preferred,
                slice_size=self.slice_size,
                slice_level=self.slice_level,
            )
        )


def parse_levels(value: object, what: str) -> tuple[str, ...]:
    """Labels, the widest level first. Raises InvalidRequestError for what no level may be called."""
    elements = as_elements(value, what, "a list of node labels such as ['block', 'rack']")
    if len(elements) > MAX_LEVELS:
        raise InvalidRequestError(f"{what} has {len(elements)} levels; allowed are {MAX_LEVELS}")
    levels = tuple(_parsed_level(element, f"each of {what}") for element in elements)
    if len(set(levels)) < len(levels):
        raise InvalidRequestError(
            f"{what} names a level twice: {', '.join(levels)}; name each once"
        )
    return levels


def _parsed_level(value: object, what: str) -> str:
    """The label of a level, which is a term of the short form."""
    text = as_text(value)
    name = None if text is None else text.strip()
    if name is None or not is_name(name) or "," in name or ":" in name:
        raise InvalidRequestError(
            f"{what} is {shown(value)}; allowed is the key of a node label without ',' and ':', such as "
            "'rack'"
        )
    return name


def parse_topology(value: object) -> str:
    """The text for a request given as text or as a dict such as ``{"required": "rack"}``. Raises
    InvalidRequestError, also where it asks for nothing.
    """
    text = as_text(value)
    request = _of_dict(value) if text is None else _of_text(text)
    if not request.levels:
        raise InvalidRequestError(
            f"topology is {shown(value)}, which asks for nothing; allowed are {_FORM}; leave it out for none"
        )
    return str(request)


@lru_cache(maxsize=1024)
def topology_request(text: str) -> TopologyRequest:
    """The request that a text stands for."""
    return _of_text(text)


def _of_text(text: str) -> TopologyRequest:
    fields: dict[str, object] = {}
    for term in filter(None, map(str.strip, text.split(","))):
        kind, colon, rest = term.partition(":")
        name = kind if colon else _REQUIRED
        if name in fields or name not in (_REQUIRED, _PREFERRED, _SLICE):
            problem = "twice" if name in fields else "unknown"
            raise InvalidRequestError(
                f"topology is {shown(text)}; the term {shown(term)} is {problem}; allowed are {_FORM}"
            )
        fields[name] = _slice_of_text(rest) if name == _SLICE else rest if colon else term
    return _request(fields)


def _slice_of_text(text: str) -> dict[str, object]:
    size, colon, level = text.partition(":")
    if not colon or not size.strip().isdecimal():
        raise InvalidRequestError(
            f"the slice of topology is {shown(text)}; allowed is SIZE:LEVEL, such as slice:8:rack"
        )
    return {"size": int(size), "level": level}


def _of_dict(value: object) -> TopologyRequest:
    allowed = (_REQUIRED, _PREFERRED, _SLICE)
    expected = "a text such as 'rack' or a dict such as {'required': 'rack'}"
    return _request(as_fields(value, "topology", allowed, expected))


def _request(fields: Mapping[str, object]) -> TopologyRequest:
    """The request with these fields, where each is what it may be."""
    size, slice_level = 0, ""
    if _SLICE in fields:
        form = "a dict such as {'size': 8, 'level': 'rack'}"
        of_slice = as_fields(fields[_SLICE], "the slice of topology", ("size", "level"), form)
        if len(of_slice) < 2:
            raise InvalidRequestError(f"the slice of topology must be {form}")
        size = parse_count(of_slice["size"], "the slice's size of topology", 1)
        slice_level = _parsed_level(of_slice["level"], "the slice's level of topology")
    names = {
        name: _parsed_level(fields[name], f"the {name} level of topology")
        for name in (_REQUIRED, _PREFERRED)
        if name in fields
    }
    return TopologyRequest(**names, slice_size=size, slice_level=slice_level)


@lru_cache(maxsize=1024)
def with_levels(text: str, levels: tuple[str, ...]) -> Topology:
    """What a text that is not empty asks for with the levels that a policy declares.

    A level that is not declared counts as one by itself, wider than those declared.
    """
    request = topology_request(text)
    undeclared = tuple(level for level in request.levels if level not in levels)
    return Topology(
        levels=(*undeclared, *levels),
        required=request.required,
        preferred=request.preferred,
        slice_size=request.slice_size,
        slice_level=request.slice_level,
    )
