"""Runs examples and pages on a Ray with two CPUs, and tells as one line of JSON what each printed.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import traceback

import ray

from tests.docs.documents import ROOT, blocks
from tests.forked_workers import fork_workers


def main(names: list[str]) -> None:
    """Run the examples of these names, and pages below docs/, one after the other."""
    fork_workers(log_monitor=True)  # what workers print is a part of what is told
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=2,
        object_store_memory=80_000_000,
        include_dashboard=False,
        logging_level="ERROR",
    )
    output = {name: output_of(name) for name in names}
    ray.shutdown()
    print(json.dumps(output))


def output_of(name: str) -> dict[str, str | None]:
    """What an example printed, what its workers and Ray printed, and how it failed (None: it did not)."""
    printed, logged, error = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(logged):
        try:
            if name.endswith(".md"):
                run_page(name)
            else:
                importlib.import_module(f"examples.{name}").main()
        except Exception:  # noqa: BLE001  # the test shows it
            error = traceback.format_exc()
    return {"printed": printed.getvalue(), "logged": logged.getvalue(), "error": error}


def run_page(name: str) -> None:
    """Run the blocks of a page one after the other."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(ROOT / "docs" / name):
        if block.runnable:
            exec(compile(block.code, name, "exec"), names)


if __name__ == "__main__":
    main(sys.argv[1:])
