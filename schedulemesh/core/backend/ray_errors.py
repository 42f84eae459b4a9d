"""Ray's errors as the runtime knows them. Nothing above this package's interface sees a RayError."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ray.exceptions import RayError

from schedulemesh.runtime.backend import BackendError


@contextmanager
def translated() -> Iterator[None]:
    """Within, an error of Ray, or of gRPC below it, becomes a BackendError whose cause it is."""
    try:
        yield
    except (RayError, *grpc_errors()) as error:
        raise BackendError(short(error)) from error


def grpc_errors() -> tuple[type[Exception], ...]:
    """The errors that gRPC raises. Importing it takes a tenth of the time of all that a supervisor imports at
    its start, so that is left to those who call something with it; until then it has raised none.
    """
    error = getattr(sys.modules.get("grpc"), "RpcError", None)
    return () if error is None else (error,)


@contextmanager
def refused() -> Iterator[None]:
    """Within, any exception becomes a BackendError: Ray raises many types for options that it refuses."""
    try:
        yield
    except Exception as error:
        raise BackendError(short(error)) from error


def short(error: Exception) -> str:
    """Ray's message on one line, without the ids and the list of common causes."""
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    return " ".join(lines).partition(" Some common causes")[0]
