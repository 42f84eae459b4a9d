"""Ray's errors as the runtime knows them. Nothing above this package's interface sees a RayError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from grpc import RpcError
from ray.exceptions import RayError

from schedulemesh.runtime.backend import BackendError


@contextmanager
def translated() -> Iterator[None]:
    """Within, an error of Ray, or of gRPC below it, becomes a BackendError whose cause it is."""
    try:
        yield
    except (RayError, RpcError) as error:
        raise BackendError(short(error)) from error


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
