"""Addresses of screens: paths with a query, and the number of a page in it."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from schedulemesh.domain.arrays import members_named
from schedulemesh.server.page.entries import InvalidEntryError

#: The screens of a task, of an array, and of the tasks that run.
TASK, ARRAY, RUNNING = "/task", "/array", "/running"


def link(path: str, *parameters: tuple[str, object]) -> str:
    """A path with a query; parameters without a value are left out."""
    query = urlencode([(name, str(value)) for name, value in parameters if value not in (None, "")])
    return f"{path}?{query}" if query else path


def link_to_task(task_id: str) -> str:
    """The address of the screen that shows a task; of several members of an array, that of the array."""
    named = members_named(task_id)
    if named is None or named[1].isdigit():
        return link(TASK, ("id", task_id))
    return link(ARRAY, ("id", named[0]))


def page_number(query: QueryParams, most: int) -> int:
    """Which page is asked for, counted from 1. Raises InvalidRequestError."""
    text = query.get("page", "1")
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not (digits and 1 <= int(text) <= most):
        raise InvalidEntryError("wrong_page", most=most, value=text)
    return int(text)
