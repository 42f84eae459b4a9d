"""Windows in a declaration: when nodes are maintained or reserved, as ``windows create`` takes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from schedulemesh.api.values import client_name
from schedulemesh.api.windows import CreateWindow, DeleteWindow, ListWindows
from schedulemesh.cli.changes import changed_result
from schedulemesh.cli.exits import RefusedError
from schedulemesh.cli.gateway import Gateway
from schedulemesh.cli.selection import node_id
from schedulemesh.client.arguments import parse_ids
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.node_labels import parse_node_labels
from schedulemesh.domain.numbers import parse_flag, parse_timeout
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Text, say
from schedulemesh.domain.windows import DEFAULT_NOTICE_S, parse_amount, parse_instant, time_text
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.answers import Listed, Response

Fields = Mapping[str, Any]

#: Where a window is, of which a file says all or nothing.
_NODES = ("nodes", "node_labels", "all_nodes", "resources")
#: What a window has of which nothing is said.
_DEFAULTS: Fields = {
    "repeat": None,
    "nodes": [],
    "node_labels": {},
    "all_nodes": False,
    "resources": {},
    "notice": DEFAULT_NOTICE_S,
    "comment": "",
    "pools": [],
    "owners": [],
    "labels": {},
}
#: The fields of a window beside its name.
FIELDS = ("start", "duration", *_DEFAULTS)


def normal(fields: Fields) -> dict[str, Any]:
    """The fields of a window in plain data, durations in seconds. Raises InvalidRequestError."""
    return {name: _PARSERS[name](value) for name, value in fields.items()}


def current(gateway: Gateway) -> dict[str, Fields]:
    """The windows of a scheduler that are open or to come."""
    return {row["name"]: _of_row(row) for row in gateway.ask(ListWindows(), Listed).rows}


def as_in_file(fields: Fields) -> dict[str, Any]:
    """A window as it is written into a file: without what it has by default."""
    return {
        name: value
        for name, value in fields.items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }


def upcoming(
    gateway: Gateway, declared: Mapping[str, Fields], present: Mapping[str, Fields]
) -> dict[str, Fields]:
    """The declared windows without those whose time has passed, with nodes by id as listings have them."""
    return {
        name: {**fields, "nodes": sorted(node_id(gateway, node) for node in fields["nodes"])}
        if fields.get("nodes")
        else fields
        for name, fields in declared.items()
        if name in present or _request(name, {}, fields).window.occurrence(time.time()) is not None
    }


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """How the windows of a scheduler become those that are declared."""

    requests: tuple[CreateWindow, ...]
    #: Those that the file leaves out, by name.
    deleted: tuple[str, ...]

    @classmethod
    def of(cls, gateway: Gateway, declared: Mapping[str, Fields], *, prune: bool) -> WindowPlan:
        """The requests that are needed. ``prune``: windows that are not declared are deleted."""
        present = current(gateway)
        left_out = [name for name in present if name not in declared] if prune else []
        return cls(
            requests=tuple(
                _request(name, present.get(name, {}), fields) for name, fields in declared.items()
            ),
            deleted=tuple(left_out),
        )

    def differences(self) -> Iterator[dict[str, object]]:
        """A row for each window that is deleted, as differences are listed."""
        for name in self.deleted:
            row = {"kind": "window", "name": name, "field": "", "current": say("declared_exists")}
            yield {**row, "declared": say("declared_deleted")}

    def carry_out(self, gateway: Gateway) -> Iterator[tuple[str, Text]]:
        """Each window, and what became of it: one whose time has passed is over, which is no error in a file
        that is applied again. Raises RefusedError at the first that is refused.
        """
        for request in self.requests:
            try:
                yield request.name, changed_result(gateway.ask(request, Response))
            except RefusedError as error:
                if error.reason != Reason.WINDOW_OVER:
                    raise
                yield request.name, say("result_code", code="over")
        for name in self.deleted:
            gateway.ask(DeleteWindow(name=name, client=client_name()), Response)
            yield name, say("result_code", code="deleted")


def _request(name: str, present: Fields, declared: Fields) -> CreateWindow:
    """The request for a window; what the file leaves out of one that exists stays as it is."""
    fields = {**_DEFAULTS, **present, **declared}
    if any(declared.get(way) for way in _NODES):
        fields |= {way: declared.get(way, _DEFAULTS[way]) for way in _NODES}
    missing = [field for field in ("start", "duration") if field not in fields]
    if missing:
        raise InvalidRequestError(
            f"window {name!r} does not exist, so it needs {' and '.join(missing)}"
        )
    return CreateWindow(
        name=name,
        start=fields["start"],
        duration_s=fields["duration"],
        repeat=fields["repeat"],
        nodes=tuple(fields["nodes"]) or None,
        node_labels=fields["node_labels"] or None,
        all_nodes=fields["all_nodes"],
        resources=fields["resources"] or None,
        notice_s=fields["notice"],
        comment=fields["comment"],
        pools=tuple(fields["pools"]) or None,
        owners=tuple(fields["owners"]) or None,
        labels=fields["labels"] or None,
        replace=True,
        client=client_name(),
    )


def _of_row(row: Mapping[str, Any]) -> Fields:
    """The fields of a window that is listed."""
    fields = {name: row[name] for name in FIELDS if name in row}
    fields |= {"duration": row["duration_s"], "notice": row["notice_s"]}
    chooses = row["nodes"] or row["node_labels"] or row["resources"]
    return {**fields, "all_nodes": not chooses}


def _start(value: object) -> str:
    """A start as listings show it. YAML reads some of them as times."""
    text = value.isoformat() if isinstance(value, datetime) else value
    return time_text(*parse_instant(text, "start"))


def _names(value: object, what: str) -> list[str]:
    return [] if value is None else sorted(parse_ids(value, what))


_PARSERS: Mapping[str, Callable[[Any], object]] = {
    "start": _start,
    "duration": lambda value: parse_timeout(value, "duration"),
    "repeat": lambda value: value or None,
    "nodes": lambda value: _names(value, "nodes"),
    "node_labels": lambda value: dict(parse_node_labels(value, "node_labels")),
    "all_nodes": lambda value: parse_flag(value, "all_nodes"),
    "resources": lambda value: parse_amount(value or None).public(),
    "notice": lambda value: parse_timeout(value, "notice"),
    "comment": lambda value: value or "",
    "pools": lambda value: _names(value, "pools"),
    "owners": lambda value: _names(value, "owners"),
    "labels": parse_labels,
}
