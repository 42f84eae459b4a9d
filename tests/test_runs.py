"""Several runs of pytest share their modules, and one summary says what became of all tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PASSES = "def test_passes(): pass\n"
MIXED = """
import pytest

def test_passes():
    pass

def test_fails():
    assert 1 == 2, "one is not two"

@pytest.mark.parametrize("name", ["a b", "c"])
def test_skipped(name):
    pytest.skip("torch is not installed")

@pytest.fixture
def broken():
    yield
    raise RuntimeError("cannot be cleaned up")

def test_whose_teardown_fails(broken):
    pass
"""
SKIPPED_WHOLE = 'import pytest\npytest.skip("no server", allow_module_level=True)\n'
CRASHES = (
    "import os\ndef test_passes(): pass\ndef test_crashes(): os._exit(0)\ndef test_after(): pass\n"
)
BROKEN = "import a_module_that_nobody_has\n"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def start(folder, name, *arguments):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.runs"]
    return subprocess.Popen(
        [*command, "--report", f"{name}.jsonl", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def summary(folder, *names):
    """The exit status, and what is printed."""
    reports = [f"{name}.jsonl" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs", "--skipped", "skipped", *reports],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """A folder with the reports of runs that end in different ways."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "pytest.ini").write_text("[pytest]\n")
    sources = {
        "passes": PASSES,
        "mixed": MIXED,
        "whole": SKIPPED_WHOLE,
        "crash": CRASHES,
        "broken": BROKEN,
    }
    for name, source in sources.items():
        (folder / f"test_{name}.py").write_text(source)
        start(folder, name, f"test_{name}.py").communicate()
    start(folder, "usage", "test_that_is_not_there.py").communicate()
    return folder


def test_the_last_lines_say_what_became_of_all_runs(reports):
    status, lines = summary(reports, "passes", "mixed", "whole")
    assert status == 1
    assert lines[lines.index("=== all runs ===") + 1 :] == [
        "SKIPPED [1] no server",
        "    test_whole.py [1]",
        "SKIPPED [2] torch is not installed",
        "    test_mixed.py [2]",
        "FAILED test_mixed.py::test_fails - AssertionError: one is not two",
        "FAILED test_mixed.py::test_whose_teardown_fails - RuntimeError: cannot be cleaned up",
        "2 passed, 2 failed, 3 skipped",
    ]


def test_skipped_tests_can_be_run_by_their_ids(reports):
    summary(reports, "mixed", "whole")
    assert (reports / "skipped").read_text().splitlines() == [
        "test_mixed.py::test_skipped[a b]",
        "test_mixed.py::test_skipped[c]",
        "test_whole.py",
    ]
    start(reports, "again", "@skipped").communicate()
    assert summary(reports, "again")[1][-1] == "0 passed, 0 failed, 3 skipped"


def test_runs_without_a_failure_succeed(reports):
    status, lines = summary(reports, "passes", "whole")
    assert (status, lines[-1]) == (0, "1 passed, 0 failed, 1 skipped")


def test_a_run_that_crashes_is_a_failure_that_names_the_test(reports):
    """Even where its process exits with success."""
    status, lines = summary(reports, "passes", "crash")
    assert status == 1
    assert "NOT RUN test_crash.py::test_crashes" in lines
    assert "NOT RUN test_crash.py::test_after" in lines
    assert lines[-2:] == [
        "FAILED run crash did not end by itself; it was in test_crash.py::test_crashes",
        "2 passed, 1 failed, 0 skipped, 2 not run",
    ]


def test_of_a_run_that_crashes_the_end_of_its_output_is_printed(folder):
    (folder / "test_crash.py").write_text(CRASHES)
    start(folder, "crash", "test_crash.py").communicate()
    (folder / "crash.log").write_text("\n".join(f"line {number}" for number in range(200)))
    (folder / "test_passes.py").write_text(PASSES)
    start(folder, "passes", "test_passes.py").communicate()
    (folder / "passes.log").write_text("not of interest")
    lines = summary(folder, "passes", "crash")[1]
    end = lines.index("=== end of run crash ===")
    assert lines[end + 1 : end + 82] == [
        *(f"line {number}" for number in range(120, 200)),
        "=== all runs ===",
    ]
    assert "not of interest" not in lines


def test_a_run_that_never_began_is_a_failure(reports):
    status, lines = summary(reports, "passes", "never")
    assert status == 1
    assert lines[-2:] == ["FAILED run never did not end by itself", "1 passed, 1 failed, 0 skipped"]


def test_a_module_that_cannot_be_imported_is_a_failure(reports):
    status, lines = summary(reports, "broken")
    assert status == 1
    assert lines[-2].startswith("FAILED test_broken.py - ")
    assert lines[-1] == "0 passed, 1 failed, 0 skipped"


def test_an_exit_status_that_no_test_explains_is_a_failure(reports):
    status, lines = summary(reports, "usage")
    assert status == 1
    assert lines[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_line_that_was_not_written_to_its_end_is_left_out(reports):
    complete, _, _ = (reports / "passes.jsonl").read_text().rpartition('{"exit"')
    (reports / "cut.jsonl").write_text(complete + '{"exi')
    status, lines = summary(reports, "cut")
    assert status == 1
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


def test_runs_that_share_modules_run_each_once(folder):
    names = [f"test_{letter}.py" for letter in "abcdef"]
    for name in names:
        (folder / name).write_text("def test_one(): pass\ndef test_two(): pass\n")
    (folder / "claims").mkdir()
    runs = [
        start(folder, "forwards", "--claims", "claims", *names),
        start(folder, "backwards", "--claims", "claims", *reversed(names)),
    ]
    for each in runs:
        each.communicate()
    assert {each.returncode for each in runs} == {0}
    status, lines = summary(folder, "forwards", "backwards")
    assert (status, lines[-1]) == (0, "12 passed, 0 failed, 0 skipped")
    count = sum(
        (folder / f"{name}.jsonl").read_text().count("began") for name in ("forwards", "backwards")
    )
    assert count == 12


def test_a_module_whose_run_crashes_is_not_run_by_another(folder):
    (folder / "test_a.py").write_text(CRASHES)
    (folder / "test_b.py").write_text(PASSES)
    (folder / "claims").mkdir()
    for name in ("first", "second"):
        start(folder, name, "--claims", "claims", "test_a.py", "test_b.py").communicate()
    status, lines = summary(folder, "first", "second")
    assert status == 1
    assert lines[-1] == "2 passed, 1 failed, 0 skipped, 2 not run"
