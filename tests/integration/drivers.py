"""Other jobs: drivers in processes of their own, on the same Ray."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import ray

_BEGIN = """
import json, os, sys
import ray
from schedulemesh.core import RayScheduler
from schedulemesh.core.agent.agent_actor import AgentActor
ray.init(log_to_driver=False, logging_level="ERROR")
"""


def start_driver(source: str, cwd: Path) -> subprocess.Popen[str]:
    """A process that is connected to this Ray and runs the source, in a folder of its own."""
    environment = {
        **os.environ,
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
        "PYTHONPATH": str(cwd),
    }
    return subprocess.Popen(
        [sys.executable, "-c", _BEGIN + textwrap.dedent(source)],
        cwd=cwd,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_driver(source: str, cwd: Path) -> str:
    """What such a process printed; it must end well."""
    with start_driver(source, cwd) as driver:
        out, err = driver.communicate(timeout=90)
    assert driver.returncode == 0, err
    return out


def environment_of_another_ray() -> dict[str, str]:
    """This environment for a program that starts a Ray: without the address of this one, and its token."""
    kept = "RAY_worker_niceness"
    return {k: v for k, v in os.environ.items() if k == kept or not k.startswith("RAY_")}


def output_of(module: str, timeout_s: float, *arguments: str) -> Any:
    """What the program of a module told, as JSON on its last line; it has a cluster of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[2],
        env=environment_of_another_ray(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def import_file(patch: Any, file: Path) -> ModuleType:
    """The module of a file under its own short name, as if its folder were the script's."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module
