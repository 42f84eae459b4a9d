"""The public calls of a class, for tests that try all of them."""

from __future__ import annotations

import inspect


def without_arguments(cls):
    """The public calls of a class that have to be given nothing."""
    for name, call in inspect.getmembers(cls, inspect.isfunction):
        parameters = inspect.signature(call).parameters.values()
        required = [
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        if not name.startswith("_") and required == ["self"]:
            yield name
