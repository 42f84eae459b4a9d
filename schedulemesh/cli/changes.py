"""Commands that change several things by name: each is changed, and what became of it is printed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable

from schedulemesh.cli.columns import CHANGES
from schedulemesh.cli.command import Output, Target, note
from schedulemesh.cli.output import emit
from schedulemesh.cli.rows import Listing
from schedulemesh.protocol.answers import AnswerT
from schedulemesh.protocol.requests import AnyRequest


def change_each(
    target: Target,
    output: Output,
    names: Iterable[str],
    request: Callable[[str], AnyRequest],
    expected: type[AnswerT],
    done: Callable[[AnswerT], str],
) -> int:
    """Send a request for each name; the exit code is that of the first refusal.

    ``done``: what became of a thing, from the answer. Refusals are printed on stderr.
    """
    from schedulemesh.cli.exits import RefusedError, code_of
    from schedulemesh.cli.gateway import gateway_to

    rows, code = [], 0
    with gateway_to(target) as gateway:
        for name in names:
            try:
                result = done(gateway.ask(request(name), expected))
            except RefusedError as error:
                note(str(error))
                code = code or int(code_of(error))
                result = f"refused: {error.reason}"
            rows.append({"name": name, "result": result})
    emit(Listing(kind="changes", rows=rows, columns=CHANGES), output)
    return code


def client_name() -> str:
    """The name of this process, host:pid, which the scheduler records with changes."""
    return f"{socket.gethostname()}:{os.getpid()}"
