"""Addresses of screens: paths with a query, and the number of a page in it."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from schedulemesh.errors import InvalidRequestError


def link(path: str, *parameters: tuple[str, object]) -> str:
    """A path with a query; parameters without a value are left out."""
    query = urlencode([(name, str(value)) for name, value in parameters if value not in (None, "")])
    return f"{path}?{query}" if query else path


def page_number(query: QueryParams, most: int) -> int:
    """Which page is asked for, counted from 1. Raises InvalidRequestError."""
    text = query.get("page", "1")
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not (digits and 1 <= int(text) <= most):
        raise InvalidRequestError(f"page must be a whole number from 1 to {most}, not {text!r}")
    return int(text)
