"""What older versions of Ray lack is done in another way, with the same result."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from ray._private import services

from schedulemesh.core.backend import ray_capabilities
from schedulemesh.core.backend.ray_capabilities import connect_directly, local_node_ids

NODE = "ab" * 28


@pytest.fixture
def raylet(tmp_path):
    """A process that looks like the one of a node."""
    program = tmp_path / "raylet"
    program.symlink_to(sys.executable)
    code = "print(flush=True); input()"
    found = subprocess.Popen(
        [program, "-c", code, f"--node_id={NODE}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    found.stdout.readline()
    yield found
    found.communicate()


@pytest.mark.parametrize("older", [False, True])
def test_the_nodes_of_this_machine_are_found_by_their_processes(raylet, monkeypatch, older):
    if older:
        monkeypatch.delattr(services, "find_node_ids", raising=False)
    assert NODE in local_node_ids()


def actors(*, torch=True, process_group=False):
    """Two actors with direct transports; what a process of theirs has is given, and no process is started."""
    answers = {"torch_is_installed": torch, "has_process_group": process_group}
    call = SimpleNamespace(remote=lambda function: answers[function.__name__])
    actor = SimpleNamespace(_ray_enable_tensor_transport=True, __ray_call__=call)
    return {"left": actor, "right": actor}


def test_without_torch_the_refusal_names_torch(monkeypatch):
    """Ray's own module cannot be imported without torch, whatever its version."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"torch is not installed for this process.*pip install"):
        connect_directly(actors(), "gloo")


@pytest.fixture
def collective(monkeypatch):
    """A Ray with direct transports, on a machine with torch; gives the communicators that are made."""
    created = []
    functions = {
        "get_collective_groups": lambda _handles, backend: [],
        "create_collective_group": lambda handles, backend: created.append((len(handles), backend)),
    }
    monkeypatch.setattr(ray_capabilities, "_optional", lambda _, name: functions.get(name))
    monkeypatch.setattr(ray_capabilities.ray, "get", lambda values: values)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    return SimpleNamespace(created=created, functions=functions)


def test_a_ray_without_direct_transports_is_named(collective):
    collective.functions.clear()
    with pytest.raises(ImportError, match=r"Ray \d.* has no direct tensor transports"):
        connect_directly(actors(), "gloo")


def test_agents_without_torch_are_named(collective):
    with pytest.raises(ImportError, match="torch is not installed for agents left, right"):
        connect_directly(actors(torch=False), "gloo")


def test_agents_with_a_process_group_of_their_own_are_named(collective):
    with pytest.raises(ValueError, match=r"agents left, right have initialized torch\.distributed"):
        connect_directly(actors(process_group=True), "gloo")
    assert collective.created == []


def test_one_communicator_is_made_of_all_actors(collective):
    connect_directly(actors(), "gloo")
    assert collective.created == [(2, "gloo")]


def test_agents_without_the_option_are_refused_first(monkeypatch):
    """Its absence needs neither torch nor a Ray that has direct transports."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="enable_tensor_transport"):
        connect_directly({"plain": SimpleNamespace()}, "gloo")
