"""What older versions of Ray lack is done in another way, with the same result."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ray._private import services

from schedulemesh.core.backend.ray_capabilities import local_node_ids

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
