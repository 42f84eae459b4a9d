"""Which files a submission crosses, from the client's call to its answer and in the agent's process.

``python -m tests.core.submission_path`` prints them. A file is crossed where one of its functions is given
the submission (its id is somewhere in the arguments) and gives it to a function of another file. Files that
only look at it, such as a log or a codec, are listed apart. The values of ``domain`` and the messages of
``protocol`` are what is passed on, so they are not counted. Fakes stand for the files that they replace.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import schedulemesh
from schedulemesh.core.agent import control_channel
from schedulemesh.core.agent import host as agent_host
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.transport.user_code import ship_arguments, ship_class
from schedulemesh.protocol.agents import AgentInit, ShippedClass, StartReport, pack, unpack

ROOT = f"{Path(schedulemesh.__file__).parent}/"
#: The id of the task and the name of the agent; in no other text.
MARK = "submission-7f3a"
#: What is passed on, not files that pass it on.
VALUES = ("domain/", "api/", "protocol/")
#: What reads the journal behind the answers, soon or late.
BEHIND = ("store/history/",)
#: The fakes, and the files that they replace: those give the submission to Ray.
REPLACED = {
    "core/test_request_service.py": "core/client/connection.py",
    "runtime/fake_backend.py": "core/backend/ray_backend.py",
}
_TESTS = f"{Path(__file__).parents[1]}/"
_TAKES_REST = 4, 8


class Trace:
    """Calls from one file of the package to another that were given the submission."""

    def __init__(self) -> None:
        self.on = False
        self.calls: set[tuple[str, str]] = set()
        self._own = threading.local()

    @property
    def crossed(self) -> set[str]:
        """Files that gave it to another file."""
        return {giver for giver, _ in self.calls} | {*REPLACED.values()}

    @property
    def looked_at(self) -> set[str]:
        """Files that were given it and gave it to no other file."""
        return {taker for _, taker in self.calls} - self.crossed

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """The profile function of every thread."""
        if not self.on or event != "call" or getattr(self._own, "busy", False):
            return
        taker, caller = _file(frame.f_code), _caller(frame)
        if taker is None or caller is None or taker == caller:
            return
        self._own.busy = True
        try:
            if _given(frame):
                self.calls.add((caller, taker))
        finally:
            self._own.busy = False


def _file(code: CodeType) -> str | None:
    """The file of the package; None: a value's, or none of the package."""
    replaced = REPLACED.get(code.co_filename.removeprefix(_TESTS))
    if replaced is not None:
        return replaced
    name = code.co_filename.removeprefix(ROOT)
    return None if name == code.co_filename or name.startswith(VALUES + BEHIND) else name


def _caller(frame: FrameType) -> str | None:
    """The nearest file of the package that the call came from."""
    back = frame.f_back
    while back is not None:
        if back.f_code.co_filename.startswith(ROOT) or _file(back.f_code) is not None:
            return _file(back.f_code)
        back = back.f_back
    return None


def _given(frame: FrameType) -> bool:
    code = frame.f_code
    many = code.co_argcount + code.co_kwonlyargcount
    many += sum(bool(code.co_flags & flag) for flag in _TAKES_REST)
    given = (frame.f_locals.get(name) for name in code.co_varnames[:many])
    return any(MARK in _shown(value) for value in given)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # an object that is being built has no repr yet
        return ""


class Worker(AgentActor):
    """A user's class."""


@contextmanager
def traced() -> Iterator[Trace]:
    """Threads that start in this block are traced, and so is this one."""
    trace, before = Trace(), sys.getprofile()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it


def through_the_scheduler(trace: Trace, service: Any, scheduler: Any) -> None:
    """Submit to a service whose threads are traced; the second submission of a class counts."""
    assert scheduler.create_pool("p", resources={"cpu": 2})["success"]
    assert scheduler.submit_task_with_preemption("first", "p", Worker, {"cpu": 1})["success"]
    service.do(asyncio.sleep(0))
    trace.on = True
    answer = scheduler.submit_task_with_preemption(
        MARK, "p", Worker, {"cpu": 1}, agent_name=MARK, actor_kwargs={}, payload={"data": 1}
    )
    trace.on = False
    assert answer["success"], answer


def through_the_agent(trace: Trace, replace: Callable[[Any, str, Any], None]) -> None:
    """Build the object as the agent's process does, with stand-ins for what Ray says of that process."""
    context = SimpleNamespace(get_node_id=lambda: "n", get_accelerator_ids=dict)
    replace(agent_host.ray, "get_runtime_context", lambda: context)
    replace(control_channel, "_current", None)
    replace(control_channel.ControlChannel, "start", lambda self: None)
    shipped = ship_class(Worker)
    init = AgentInit(
        scheduler="s",
        namespace="n",
        agent_name=MARK,
        incarnation=1,
        labels={},
        shipped=shipped,
        arguments=ship_arguments((), {}).data,
        saved=None,
    )
    host = agent_host.host_class(unpack(shipped, ShippedClass))
    trace.on = True
    report = host(pack(init), None, [], []).schedulemesh_report()
    trace.on = False
    assert not unpack(report, StartReport).error


def main() -> None:
    """Print the files."""
    from tests.core.test_request_service import client
    from tests.runtime.composition import InThread

    with traced() as trace, tempfile.TemporaryDirectory() as folder:
        service = InThread(Path(folder) / "j.sqlite")
        try:
            through_the_scheduler(trace, service, client(service))
        finally:
            service.close()
        through_the_agent(trace, setattr)
    print(f"{len(trace.crossed)} files crossed:", *sorted(trace.crossed), sep="\n  ")
    print(f"{len(trace.looked_at)} files that look at it:", *sorted(trace.looked_at), sep="\n  ")


if __name__ == "__main__":
    main()
