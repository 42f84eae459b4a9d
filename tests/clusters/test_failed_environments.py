"""What pip and uv say of a package that there is not, in one line, and the rest in the log of the attempt."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.clusters.failed_environments import ABSENT, LIMIT_S
from tests.integration.drivers import output_of

#: How the line begins in which each says what it lacks.
CAUSES = {
    "pip": f"ERROR: Could not find a version that satisfies the requirement {ABSENT}",
    "uv": "error: ",
}


def absence_of_uv() -> str:
    """Why Ray cannot have uv here, which it installs with pip; empty: it can."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "-q", "uv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


@pytest.mark.timeout(2 * LIMIT_S + 120)
@pytest.mark.parametrize("installer", CAUSES)
def test_the_cause_of_a_failed_environment_is_one_line_and_the_rest_is_in_the_log(installer):
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed, with which Ray sets up environments")
    if installer == "uv" and (why := absence_of_uv()):
        pytest.skip(f"uv cannot be installed here: {why}")
    told = output_of("tests.clusters.failed_environments", 2 * LIMIT_S, installer)[installer]
    assert told["state"] == "failed"
    said = "its process was not started: its runtime environment could not be set up: "
    cause = told["error"].partition(said)[2]
    assert "\n" not in told["error"]
    assert cause.startswith(CAUSES[installer])
    assert ABSENT in told["log"]
    assert told["log"].startswith("[schedulemesh] ")
    assert len(told["log"]) > len(told["error"]) + 100
