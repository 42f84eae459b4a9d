"""The start of the command ``schedulemesh``.

The module of a command is loaded alone: loading all of them takes longer than most commands do.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

import typer

from schedulemesh.cli.command import note
from schedulemesh.cli.root import new_app
from schedulemesh.cli.table_names import DECLARED

#: The module of each command, which is loaded alone, but for those that are declared with a call; ``help``,
#: and words that are no command, need all.
MODULES = {
    "status": "status",
    "top": "top",
    "pools": "pools",
    "cohorts": "cohorts",
    "agents": "agents",
    "nodes": "agents",
    "tasks": "tasks",
    "queue": "queue",
    "jobs": "jobs",
    "leases": "leases",
    "groups": "leases",
    "explain": "explain",
    "events": "history",
    "history": "history",
    "usage": "history",
    "preemptions": "preemptions",
    "evaluate": "preemptions",
    "metrics": "metrics",
    "alerts": "alerts",
    "submit": "jobs",
    "lease": "session",
    "wait": "waiting",
    "logs": "jobs",
    "exec": "exec_commands",
    "shell": "exec_commands",
    "complete": "tasks",
    "cancel": "tasks",
    "preempt": "tasks",
    "save": "states",
    "restore": "states",
    "hold": "queue",
    "release": "queue",
    "priority": "queue",
    "limit": "queue",
    "front": "queue",
    "adopt": "jobs",
    "cordon": "agents",
    "uncordon": "agents",
    "drain": "drains",
    "undrain": "drains",
    "drains": "drains",
    "windows": "windows",
    "health": "agents",
    "external": "agents",
    "orphans": "lifecycle",
    "apply": "declared",
    "diff": "declared",
    "export": "declared",
    "policy": "policy",
    "tokens": "tokens",
    "audit": "audit",
    "plugins": "plugins",
    "start": "lifecycle",
    "stop": "lifecycle",
    "list": "status",
    "doctor": "doctor",
    "demo": "lifecycle",
    "simulate": "simulate",
    "rehearse": "rehearse",
    "version": "lifecycle",
}


def main() -> None:
    """Run the command line."""
    words = sys.argv[1:]
    if sys.stdout is None:
        # Closed by whoever started the command, which runs all the same and prints nowhere.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
    if completed := _completed_words():
        from schedulemesh.cli import completion, http_gateway

        completion.connect = http_gateway.at_once
    with output_errors():
        app_for(words or completed)()


#: Why a disk, or what stands for one, does not take output: it is full, or broken.
_NOT_TAKEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def output_errors() -> Iterator[None]:
    """Within, output that cannot be written ends the process with the exit code 1: with a sentence on stderr,
    or silently where its reader has gone.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, *_NOT_TAKEN):
            raise
        _discard_output()
        if error.errno != errno.EPIPE:
            note(f"the output cannot be written: {error.strerror}")
        sys.exit(1)


def _discard_output() -> None:
    """Have the end of Python write what is left of the output nowhere, which would fail once more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _completed_words() -> list[str]:
    """The words of the line that a shell wants completed, without the program; empty: it wants nothing."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:]


def app_for(words: list[str]) -> typer.Typer:
    """The command with all subcommands; where these words begin with one of them, with those of its
    module.
    """
    first = words[0] if words else ""
    module = MODULES.get(first)
    if first in DECLARED:
        from schedulemesh.cli.tables import table_app

        _, module_of_call = DECLARED[first]
        alone = new_app()
        alone.add_typer(table_app([module_of_call]))
        return alone
    if module is None:
        from schedulemesh.cli.app import app

        return app
    alone = new_app()
    alone.add_typer(import_module(f"schedulemesh.cli.{module}").app)
    return alone
