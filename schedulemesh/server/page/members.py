"""The tasks that a change is about: single ones, whole arrays, and some members of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from schedulemesh.api.pages import PageQuery
from schedulemesh.domain.arrays import Indices, array_form, member_id, members_named, parse_indices
from schedulemesh.errors import InvalidRequestError
from schedulemesh.server.listings import Row
from schedulemesh.server.page.reads import RowPage, ScreenReads, together

#: Tasks that are listed, and members that are looked up by their ids.
_LISTED, _LOOKED_UP = 50, 1_000
_BY_TASK = (("task_id", False),)


class MeantTasks(NamedTuple):
    """The tasks that a change is about."""

    #: The first of them; members that were not tried yet are one row.
    rows: list[Row]
    #: How many there are, each member counted, and how many of them these rows are.
    total: int
    listed: int
    #: What was named and neither waits nor runs.
    missing: list[str]


class _Members(NamedTuple):
    """Some members of an array, as they are named."""

    array_id: str
    indices: Indices


async def tasks_meant(reader: ScreenReads, targets: Sequence[str]) -> MeantTasks:
    """The tasks that wait or run of those that are named: ``train``, ``train[3]`` or ``train[3-7,9]``."""
    some = {one: members for one in targets if (members := _members_in(one)) is not None}
    ids = [*targets, *(members.array_id for members in some.values())]
    for members in some.values():
        ids += [member_id(members.array_id, n) for n in islice(members.indices, _LOOKED_UP)]
    by_id, of_arrays = await together(
        tasks_with(reader, "task_id", ids), tasks_with(reader, "array_id", targets)
    )
    arrays = {str(row["task_id"]): row for row in by_id.items if row["array"]}
    tasks = {
        str(row["task_id"]): row for row in (*by_id.items, *of_arrays.items) if not row["array"]
    }
    untried = _untried(targets, some, arrays)
    rows = [*(row for row, _ in untried.values()), *tasks.values()]
    total = (
        (by_id.total - len(arrays)) + of_arrays.total + sum(count for _, count in untried.values())
    )
    missing = [one for one in targets if not (one in untried or _has_task(one, some, tasks))]
    listed = sum(count for _, count in untried.values()) + len(rows) - len(untried)
    return MeantTasks(rows[:_LISTED], total, listed if len(rows) <= _LISTED else _LISTED, missing)


async def tasks_with(reader: ScreenReads, field: str, values: Sequence[str]) -> RowPage:
    """The first tasks of which a field has one of these values."""
    if not values:
        return RowPage([], 0, more=False)
    fields = ((field, tuple(dict.fromkeys(values))),)
    return await reader.page("tasks", PageQuery(fields=fields, order=_BY_TASK, limit=_LISTED))


def _members_in(target: str) -> _Members | None:
    """The members that a target names; None: it names a task or a whole array."""
    named = members_named(target)
    if named is None:
        return None
    try:
        return _Members(named[0], parse_indices(named[1]))
    except InvalidRequestError:
        return None


def _untried(
    targets: Sequence[str], some: Mapping[str, _Members], arrays: Mapping[str, Row]
) -> dict[str, tuple[Row, int]]:
    """By target the members that were not tried yet, as a row with how many they are."""
    rows: dict[str, tuple[Row, int]] = {}
    for one in targets:
        array_id = some[one].array_id if one in some else one
        if (row := arrays.get(array_id)) is None:
            continue
        indices = array_form(row["array"]).indices()
        if one in some:
            indices = indices.within(some[one].indices)
        if indices:
            task_id = f"{array_id}[{indices.written()}]"
            rows[one] = ({**row, "task_id": task_id}, len(indices))
    return rows


def _has_task(target: str, some: Mapping[str, _Members], tasks: Mapping[str, Row]) -> bool:
    """Whether one of the tasks belongs to a target."""
    if target in tasks:
        return True
    members = some.get(target)
    return any(
        row["array_id"] == target
        if members is None
        else row["array_id"] == members.array_id and row["array_index"] in members.indices
        for row in tasks.values()
    )
