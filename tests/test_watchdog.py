"""A run of tests that hangs where pytest-timeout does not end it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.watchdog import Watchdog

def pytest_configure(config):
    config.pluginmanager.register(Watchdog(LIMIT, LIMIT))
"""
HANGS_AFTER_A_FAILURE = """
import threading
import pytest

@pytest.fixture
def never_ends():
    yield
    threading.Event().wait()

def test_fails(never_ends):
    assert not "reached"
"""
HANGS_AT_THE_EXIT = """
import threading

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""
PASSES = """
def test_passes():
    pass
"""


def run(folder, source, limit_s=0.5):
    """A run of pytest on one file, and what it printed."""
    conftest = CONFTEST.replace("LIMIT", str(limit_s))
    (folder / "conftest.py").write_text(conftest, encoding="utf-8")
    (folder / "test_one.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_one.py"]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("source", [HANGS_AFTER_A_FAILURE, HANGS_AT_THE_EXIT])
def test_a_run_that_hangs_ends_with_its_stacks(tmp_path, source):
    code, printed = run(tmp_path, source)
    assert code == 1
    assert "Timeout (" in printed
    assert "threading.py" in printed
    assert ("reached" in printed) == (source is HANGS_AFTER_A_FAILURE)


def test_a_run_that_ends_is_left_alone(tmp_path):
    code, printed = run(tmp_path, PASSES, limit_s=30.0)
    assert code == 0
    assert "1 passed" in printed
    assert "Timeout (" not in printed
