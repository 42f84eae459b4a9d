"""A call waits as long as the supervisor shows that it lives, and says what it was waiting for."""

from __future__ import annotations

import threading

import msgspec
import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.config.settings import (
    PROTOCOL_VERSION,
    JournalSettings,
    SchedulerSettings,
    StrategyRef,
)
from schedulemesh.core.client import connection, deadline
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.contradictions import refuse_contradictions
from schedulemesh.errors import (
    ProtocolMismatchError,
    SchedulerExistsError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.answers import Hello

SETTINGS = SchedulerSettings(name="x")


class Supervised:
    """A supervisor and its clock: the answer to a call comes after so many seconds, if it lives."""

    def __init__(
        self, answer_after_s=float("inf"), alive_until_s=float("inf"), signs=(True, 600.0)
    ):
        self.now = 0.0
        self.answer_after_s, self.alive_until_s, self.signs = answer_after_s, alive_until_s, signs
        self.raises = None
        self.asked = 0

    @property
    def alive(self):
        return self

    def remote(self):
        self.asked += 1
        return ("sign", self.now < self.alive_until_s)

    def get(self, ref, timeout=None):
        if isinstance(ref, tuple):
            return self.signs
        if self.raises is not None:
            raise self.raises
        if self.now + (timeout or 0.0) < self.answer_after_s:
            self.now += timeout
            raise GetTimeoutError
        self.now = max(self.now, self.answer_after_s)
        return "answer"

    def wait(self, refs, num_returns, timeout):
        *asked, sign = refs
        if sign[1]:
            self.now += 0.001
            return [sign], asked
        if self.now + timeout >= self.answer_after_s:
            return asked, [sign]
        self.now += timeout
        return [], refs


@pytest.fixture
def supervised(monkeypatch):
    def make(**how):
        found = Supervised(**how)
        monkeypatch.setattr(deadline.ray, "get", found.get)
        monkeypatch.setattr(deadline.ray, "wait", found.wait)
        monkeypatch.setattr(deadline.ray, "is_initialized", lambda: True)
        monkeypatch.setattr(deadline.time, "monotonic", lambda: found.now)
        return found

    return make


def test_a_quick_answer_needs_no_sign_of_life(supervised):
    found = supervised(answer_after_s=4.0)
    assert deadline.answer(found, "x", "view", "ref") == "answer"
    assert found.asked == 0


def test_a_submission_may_take_minutes_while_the_supervisor_responds(supervised):
    found = supervised(answer_after_s=300.0)
    assert deadline.answer(found, "x", "submit_task", "ref") == "answer"
    assert found.asked > 10


def test_a_silent_supervisor_is_reported_within_half_a_minute(supervised):
    found = supervised(alive_until_s=0.0)
    with pytest.raises(
        SchedulerUnavailableError, match=r"'x' shows no sign of life.*'submit_task'"
    ):
        deadline.answer(found, "x", "submit_task", "ref")
    assert found.now <= 30.0


def test_a_supervisor_that_becomes_silent_later_is_reported_too(supervised):
    found = supervised(alive_until_s=100.0)
    with pytest.raises(SchedulerUnavailableError, match="no sign of life"):
        deadline.answer(found, "x", "submit_task", "ref")
    assert 100.0 < found.now <= 140.0


def test_an_answer_that_comes_before_the_sign_of_life_counts(supervised):
    found = supervised(alive_until_s=0.0, answer_after_s=20.0)
    assert deadline.answer(found, "x", "view", "ref") == "answer"


@pytest.mark.parametrize(
    ("method", "signs", "least_s", "why"),
    [
        ("view", (True, 600.0), 60.0, "its journal or Ray does not answer it"),
        ("hello", (False, 600.0), 60.0, "it is still recovering"),
        ("submit_task", (True, 600.0), 600.0, "has not answered 'submit_task'"),
    ],
)
def test_a_call_that_is_never_answered_has_a_limit(supervised, method, signs, least_s, why):
    found = supervised(signs=signs)
    with pytest.raises(SchedulerUnavailableError, match=why):
        deadline.answer(found, "x", method, "ref")
    assert least_s <= found.now <= least_s + 10.0


def test_a_call_that_ends_in_a_timeout_of_its_own_is_answered(supervised):
    found = supervised()
    found.raises = RayTaskError("view", "", GetTimeoutError("inside")).as_instanceof_cause()
    with pytest.raises(GetTimeoutError):
        deadline.answer(found, "x", "view", "ref")
    assert found.asked == 0


def test_the_limit_of_slow_calls_follows_the_policy():
    longer = PreemptionPolicy(start_timeout=1000.0, preemption_grace_s=300.0)
    assert PreemptionPolicy().longest_s < 600.0
    assert longer.longest_s > 3300.0


def test_an_unresponsive_ray_is_reported(monkeypatch):
    gate = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(deadline, "RAY_S", 0.05)
        with pytest.raises(SchedulerUnavailableError, match=r"asked to find it: its head process"):
            deadline.ask_ray("find it", gate.wait)
    gate.set()
    assert deadline.ask_ray("find it", lambda: 7) == 7
    with pytest.raises(KeyError):
        deadline.ask_ray("find it", {}.popitem)


class Handle:
    """Every method gives a reference."""

    def __getattr__(self, _name):
        return self

    def remote(self, *_args):
        return "ref"


def hello(**more):
    fields = {
        "protocol": PROTOCOL_VERSION,
        "python": connection.platform.python_version(),
        "ray": "2",
        "detached": True,
        "job_id": "1",
        "settings": SETTINGS,
    }
    return Hello(**{**fields, **more})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ActorDiedError(), r"^scheduler 'x' has ended: it was shut down.*RayScheduler\('x'\)$"),
        (
            ActorDiedError(
                RayTaskError(
                    "Supervisor.__init__",
                    "Traceback:\n  File x\nModuleNotFoundError: No module named 'schedulemesh'",
                    ModuleNotFoundError("No module named 'schedulemesh'"),
                )
            ),
            r"^the supervisor of scheduler 'x' could not start: ModuleNotFoundError: .*Every node [^\n]*$",
        ),
        (
            ActorUnavailableError("no route\nto it", b"0" * 16),
            r"^scheduler 'x' cannot be reached at the moment: [^\n]*$",
        ),
    ],
)
def test_a_scheduler_that_has_ended_gets_one_sentence(supervised, error, told):
    supervised().raises = error
    with pytest.raises(SchedulerUnavailableError, match=told):
        Connection(Handle(), SETTINGS, hello()).call("view", "pools")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"python": "3.8.1"}, "'x' runs on Python 3.8.1 and this process on Python 3"),
        ({"protocol": 99}, "speaks protocol 99 and this process protocol"),
    ],
)
def test_another_version_gets_one_sentence(more, told):
    with pytest.raises(ProtocolMismatchError, match=told):
        connection._refuse_other_versions("x", hello(**more))
    connection._refuse_other_versions("x", hello())


def test_an_answer_of_another_version_gets_one_sentence(supervised, monkeypatch):
    found = supervised(answer_after_s=0.0)
    for strange in (b"\xc1", object(), msgspec.msgpack.encode({"protocol": "x"})):
        monkeypatch.setattr(found, "get", lambda ref, timeout=None, strange=strange: strange)
        monkeypatch.setattr(deadline.ray, "get", found.get)
        with pytest.raises(ProtocolMismatchError, match=r"'x' answers in a form .* cannot read"):
            connection._greet(Handle(), SETTINGS)


def living(**more):
    return SchedulerSettings(name="x", detached=True, **more)


@pytest.mark.parametrize(
    ("given", "found", "told"),
    [
        ({"state_path": "/a"}, {"state_path": "/b"}, "state_path '/b', but '/a' was given"),
        ({"state_path": "/a"}, {}, "state_path none, but '/a' was given"),
        (
            {"state_path": "postgresql://me:secret@host/db"},
            {},
            r"but 'postgresql://me:\*\*\*@host/db' was given",
        ),
        ({"node_strategy": "spread"}, {}, "node_strategy 'bin_pack', but 'spread' was given"),
        ({"pool_strategy": "spread"}, {}, "pool_strategy 'dominant_share', but 'spread'"),
        (
            {"strategies": (StrategyRef(name="Mine", code=b"1"),)},
            {"strategies": (StrategyRef(name="Yours"),)},
            r"strategies \[Yours\], but \[Mine\] was given",
        ),
        ({"health_interval_s": 5.0}, {}, "health_interval_s None, but 5.0 was given"),
        ({"journal": JournalSettings(snapshot_facts=7)}, {}, "snapshot_facts=7"),
    ],
)
def test_settings_that_contradict_the_living_scheduler_are_named_both(given, found, told):
    with pytest.raises(SchedulerExistsError, match=told):
        refuse_contradictions(living(**given), living(**found))


def test_what_is_not_given_or_the_same_contradicts_nothing(tmp_path):
    same = {
        "state_path": str(tmp_path),
        "strategies": (StrategyRef(name="Mine", path="a:B", code=b"1", sys_path=("/here",)),),
    }
    made = living(node_strategy="spread", **same)
    refuse_contradictions(living(), made.public())
    refuse_contradictions(living(node_strategy="spread", **same), made.public())
    (tmp_path / "link").symlink_to(tmp_path)
    refuse_contradictions(living(state_path=str(tmp_path / "link")), made.public())


def test_a_caller_over_the_socket_waits_while_the_supervisor_lives_within_its_limits(supervised):
    living = supervised()
    deadline.require_sign_of_life(living, "x", "submit_task", living.now)
    assert living.asked == 1


def test_a_caller_over_the_socket_gives_a_silent_supervisor_up(supervised):
    silent = supervised(alive_until_s=0.0)
    with pytest.raises(SchedulerUnavailableError, match=r"'x' shows no sign .*'list_pools'"):
        deadline.require_sign_of_life(silent, "x", "list_pools", silent.now)
