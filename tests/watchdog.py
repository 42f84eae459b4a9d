"""Ends a run that hangs, and tells where.

pytest-timeout ends a test by an exception in the main thread. That does not reach a thread that waits outside
of Python. A test that has failed has no limit any more, so its fixtures may hang, and so may the end of the
process. Here the stacks of all threads are printed a minute later and the process exits with 1, which
faulthandler does in a thread that needs no lock of the interpreter.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest


class Watchdog:
    """A plugin of pytest: limits the time of each phase of a test and of the exit of the process.

    A phase may take ``after_s`` seconds longer than the limit of its test, the exit that long.
    """

    def __init__(self, limit_s: float, after_s: float = 60.0) -> None:
        self._limit_s, self._after_s = limit_s, after_s
        # During a test pytest redirects the file descriptor of standard error.
        self._stderr = os.dup(2)

    # pytest cancels the timer of faulthandler where a test fails, so every phase starts it again.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._start_timer(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._start_timer(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        self._start_timer(item)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # a process that is ended prints no summary
            text = (
                f"\n{report.when} of {report.nodeid}:\n{report.longreprtext}\n{report.capstdout}\n"
            )
            os.write(self._stderr, text.encode(errors="backslashreplace"))

    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        faulthandler.dump_traceback_later(self._after_s, exit=True, file=self._stderr)

    def _start_timer(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker("timeout")
        limit_s = float(marker.args[0]) if marker else self._limit_s
        faulthandler.dump_traceback_later(limit_s + self._after_s, exit=True, file=self._stderr)
