"""What some supported versions of Ray have and others lack; probed by whether it is there, not by number."""

from __future__ import annotations

import importlib
from typing import Any

import ray.exceptions

_TOKENS = "ray._private.authentication.authentication_token_setup"


class _NeverRaisedError(Exception):
    """Stands for an exception that this Ray does not know."""


def rejected_token_error() -> type[Exception]:
    """The exception of a cluster that does not accept this process's token; one that is never raised where
    Ray has no tokens.
    """
    found: type[Exception] = getattr(ray.exceptions, "AuthenticationError", _NeverRaisedError)
    return found


def use_token_if_available() -> None:
    """Have this process send Ray's token where one is stored on this machine. Older versions do it by
    themselves if the environment says so, or have no tokens.
    """
    enable = _optional(_TOKENS, "maybe_enable_token_auth_if_token_available")
    if enable is not None:
        enable(warn_if_disabled=False)


def _optional(module: str, name: str) -> Any:
    """Something of a module; None: this Ray does not have it."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
