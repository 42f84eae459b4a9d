"""Completion in a shell: the names that a scheduler knows, over its HTTP API, without Ray."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from schedulemesh.cli.app import app
from schedulemesh.cli.completion import COMPLETERS
from tests.cli.conftest import Scheduler
from tests.runtime.composition import InThread
from tests.server.local import Api

PROGRAM = """
import sys
sys.argv[0] = "schedulemesh"
from schedulemesh.cli.entry import main
try:
    main()
finally:
    print("ray" in sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    service = InThread(folder / "j.sqlite")
    api = Api(service, folder / "home")
    scheduler = Scheduler(service)
    scheduler.pool("research", cpu=2)
    scheduler.pool("研究", cpu=2)
    for name in ("train-1", "train-2", "eval-1"):
        scheduler.submit(name, "research", queue=True, owner=name.partition("-")[0])
    yield api
    api.close()
    service.close()


def completed(served, line, shell="zsh", **environment):
    """The suggestions for a line, and what is said beside them."""
    words = line.split(" ")
    variables = {
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "SCHEDULEMESH_HOME": str(served.folder),
            "_SCHEDULEMESH_COMPLETE": f"complete_{shell}",
            **variables[shell],
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1:] == ["False"], done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_ids_are_completed_in_every_shell(served, shell):
    text = completed(served, "schedulemesh explain tr", shell)
    assert ("train-1" in text, "train-2" in text, "eval-1" in text) == (True, True, False)


@pytest.mark.parametrize(
    ("line", "suggestions"),
    [
        ("schedulemesh cancel eval-1 train-", {"train-1", "train-2"}),
        ("schedulemesh queue --pool r", {"research"}),
        ("schedulemesh submit --pool 研", {"研究"}),
        ("schedulemesh tasks get train-2", {"train-2"}),
        ("schedulemesh jobs --owner nobody", set()),
        ("schedulemesh explain nothing", set()),
    ],
)
def test_what_is_suggested(served, line, suggestions):
    assert set(completed(served, line, "bash").split()) == suggestions


def test_nothing_is_suggested_and_nothing_said_where_nobody_answers(served, tmp_path):
    environment = {"SCHEDULEMESH_HOME": str(tmp_path)}
    assert completed(served, "schedulemesh explain t", "bash", **environment).strip() == ""
    environment = {"RAY_ADDRESS": "http://127.0.0.1:1"}
    assert completed(served, "schedulemesh explain t", "bash", **environment).strip() == ""


def test_every_parameter_of_such_a_name_is_completed():
    def commands(group):
        for info in group.registered_commands:
            yield info.callback
        for sub in group.registered_groups:
            yield from commands(sub.typer_instance)

    seen = set()
    for callback in commands(app):
        for parameter in inspect.signature(callback).parameters.values():
            if parameter.name in COMPLETERS:
                (option,) = parameter.annotation.__metadata__
                assert option.autocompletion is COMPLETERS[parameter.name], callback
                seen.add(parameter.name)
    assert seen >= {"task", "tasks", "lease", "pool", "nodes", "owner"}
