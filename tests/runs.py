"""The runs of pytest that make up ``make test``: they share modules, and one summary says how all ended.

As a plugin, ``-p tests.runs``, it writes what becomes of each test to a file as it happens (``--report``), so
that a run which crashes has said what it was doing. Runs with the same folder of claims (``--claims``) share
their modules: each module is run by the first of them that comes to it.

As a program, ``python -m tests.runs REPORT...``, it prints what became of all tests of these runs, writes the
ids of the skipped ones to a file, and fails unless every run ended well and every test was run. Of a run that
did not end by itself it prints the last lines of its output, where that is in a ``.log`` beside the report.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

#: The slowest tests that a summary names.
_SLOWEST = 15
#: How many ids of tests that were not run a summary names for each run.
_NAMED = 20
#: How many lines of the output of a run that did not end by itself a summary prints.
_LAST_LINES = 80


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("runs of make test")
    group.addoption("--report", type=Path, help="write what becomes of each test to this file")
    group.addoption("--claims", type=Path, help="share modules with runs that have the same folder")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("report"):
        config.pluginmanager.register(Reporter(file))
    if folder := config.getoption("claims"):
        config.pluginmanager.register(Claims(folder))


class Reporter:
    """A plugin of pytest: a line of JSON for everything that happens to a test."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("w", encoding="utf-8")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._write(collected=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._write(id=report.nodeid, outcome=report.outcome, reason=_reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(began=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(id=report.nodeid, outcome=report.outcome, reason=_reason(report))
        self._write(id=report.nodeid, seconds=report.duration)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(exit=int(exitstatus))

    def _write(self, **event: Any) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()


class Claims:
    """A plugin of pytest: passes over modules that another run has claimed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Whether this run has a module, by its path.
        self._own: dict[Path, bool] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True, which ends it, where another run has the test's module."""
        if item.path not in self._own:
            self._own[item.path] = self._claim(item)
        return None if self._own[item.path] else True

    def _claim(self, item: pytest.Item) -> bool:
        name = str(item.path.relative_to(item.config.rootpath)).replace("/", "+")
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was skipped, or the first line of the error; empty where it passed."""
    if report.outcome == "skipped":
        if hasattr(report, "wasxfail"):
            return f"expected to fail: {report.wasxfail}"
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return text.removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = "" if report.longrepr is None else str(crash.message if crash else report.longrepr)
    return next(iter(text.strip().splitlines()), "")


class Run:
    """What a report says."""

    def __init__(self, file: Path) -> None:
        self.name = file.stem
        self._log = file.with_suffix(".log")
        self.collected: list[str] = []
        #: Outcome and reason by test; a failure of any phase is one of the test.
        self.outcomes: dict[str, tuple[str, str]] = {}
        self.seconds: Counter[str] = Counter()
        #: The test that began last.
        self.began = ""
        #: The exit status of pytest; None: the run did not end by itself.
        self.exit: int | None = None
        for event in _events(file):
            self._add(event)

    def _add(self, event: Mapping[str, Any]) -> None:
        self.collected = event.get("collected", self.collected)
        self.began = event.get("began", self.began)
        self.exit = event.get("exit", self.exit)
        if "seconds" in event:
            self.seconds[event["id"]] += event["seconds"]
        elif "id" in event and self.outcomes.get(event["id"], ("",))[0] != "failed":
            self.outcomes[event["id"]] = (event["outcome"], event["reason"])

    def fault(self) -> str:
        """What is wrong with the run as a whole; empty: nothing that its tests do not say."""
        if self.exit is None:
            during = f"; it was in {self.began}" if self.began else ""
            return f"run {self.name} did not end by itself{during}"
        explained = any(outcome == "failed" for outcome, _ in self.outcomes.values())
        if self.exit not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "" if explained else f"run {self.name} ended with exit status {self.exit}"
        return ""

    def last_lines(self) -> list[str]:
        """The end of its output where it did not end by itself; empty where it did, or wrote no log."""
        if self.exit is not None or not self._log.exists():
            return []
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]


def _events(file: Path) -> Iterator[dict[str, Any]]:
    """The complete lines; none where the run did not come to write any."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # the process ended while it wrote its last line
            return


class Summary:
    """What became of the tests of several runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.seconds: Counter[str] = Counter()
        outcomes: dict[str, tuple[str, str]] = {}
        collected: dict[str, None] = {}
        self.faults = []
        #: The end of the output by the name of the run, for those that did not end by themselves.
        self.last_lines: dict[str, list[str]] = {}
        for run in runs:
            outcomes |= run.outcomes
            collected |= dict.fromkeys(run.collected)
            self.seconds += run.seconds
            self.faults += filter(None, [run.fault()])
            if last_lines := run.last_lines():
                self.last_lines[run.name] = last_lines
        self.passed = [test for test, (outcome, _) in outcomes.items() if outcome == "passed"]
        self.failed = {
            test: why for test, (outcome, why) in outcomes.items() if outcome == "failed"
        }
        self.skipped = {
            test: why for test, (outcome, why) in outcomes.items() if outcome == "skipped"
        }
        self.not_run = [test for test in collected if test not in outcomes]

    @property
    def succeeded(self) -> bool:
        return bool(self.passed or self.skipped) and not (
            self.failed or self.not_run or self.faults
        )

    def lines(self) -> Iterator[str]:
        """For people; the last line has the numbers."""
        yield f"=== slowest {_SLOWEST} ==="
        for test, seconds in self.seconds.most_common(_SLOWEST):
            yield f"{seconds:7.1f} s  {test}"
        for name, last_lines in self.last_lines.items():
            yield f"=== end of run {name} ==="
            yield from last_lines
        yield "=== all runs ==="
        for reason, tests in sorted(_by_reason(self.skipped).items()):
            modules = Counter(test.partition("::")[0] for test in tests)
            yield f"SKIPPED [{len(tests)}] {reason}"
            yield from (f"    {module} [{count}]" for module, count in modules.items())
        for test in self.not_run[:_NAMED]:
            yield f"NOT RUN {test}"
        if len(self.not_run) > _NAMED:
            yield f"NOT RUN and {len(self.not_run) - _NAMED} more"
        for test, reason in self.failed.items():
            yield f"FAILED {test} - {reason}"
        for fault in self.faults:
            yield f"FAILED {fault}"
        yield self.numbers()

    def numbers(self) -> str:
        not_run = f", {len(self.not_run)} not run" if self.not_run else ""
        failed = len(self.failed) + len(self.faults)
        return f"{len(self.passed)} passed, {failed} failed, {len(self.skipped)} skipped{not_run}"


def _by_reason(skipped: Mapping[str, str]) -> Mapping[str, list[str]]:
    by_reason = defaultdict(list)
    for test, reason in skipped.items():
        by_reason[reason].append(test)
    return by_reason


def main(arguments: list[str]) -> int:
    """Print the summary; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.runs", description="Sum up runs of tests."
    )
    parser.add_argument("reports", nargs="+", type=Path, help="written by pytest --report")
    parser.add_argument("--skipped", type=Path, help="write the ids of skipped tests to this file")
    options = parser.parse_args(arguments)
    summary = Summary(Run(file) for file in options.reports)
    print(*summary.lines(), sep="\n")
    if options.skipped:
        options.skipped.write_text("".join(f"{test}\n" for test in summary.skipped), "utf-8")
    return 0 if summary.succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
