"""Scheduler objects: what a ``with`` block ends, what ``repr`` shows, and which calls both classes have."""

from __future__ import annotations

import inspect
import logging
from types import SimpleNamespace

import pytest

from schedulemesh import simple as simple_module
from schedulemesh.client.remote import NEEDS_RAY, HttpScheduler
from schedulemesh.config.settings import PROTOCOL_VERSION
from schedulemesh.core.client import connection as connections
from schedulemesh.core.client import origin, scheduler_list
from schedulemesh.core.client import scheduler as scheduler_module
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.errors import (
    InvalidRequestError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.answers import Hello
from schedulemesh.simple import SimpleScheduler


@pytest.fixture
def ended(monkeypatch):
    """The names of the schedulers that were ended, in order."""
    names = []
    monkeypatch.setattr(
        connections, "end", lambda handle, settings, credential: names.append(settings.name)
    )
    return names


@pytest.fixture
def living(monkeypatch):
    """Have schedulers be found, detached or not, as the argument says."""

    def be(detached):
        def connected(settings, owned):
            hello = Hello(
                protocol=PROTOCOL_VERSION,
                python="3",
                ray="2",
                detached=detached,
                job_id="j",
                settings=settings,
            )
            return Connection("handle", settings, hello, owned=owned)

        def connect(settings, token):
            return connected(settings, not detached)

        monkeypatch.setattr(scheduler_module, "connect", connect)
        monkeypatch.setattr(
            scheduler_module, "find", lambda settings, token: connected(settings, False)
        )

    be(False)
    return be


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Namespace and name of each scheduler that Ray has registered."""
    schedulers = []

    def living_schedulers(namespace):
        return [each for each in schedulers if namespace in (None, each[0])]

    monkeypatch.setattr(scheduler_list, "living_schedulers", living_schedulers)
    monkeypatch.setattr(scheduler_list, "require_ray", lambda: None)
    for variable in ("SCHEDULEMESH_NAME", "SCHEDULEMESH_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)
    return schedulers


def test_a_block_ends_a_scheduler_of_this_job(living, ended):
    with RayScheduler("mesh") as scheduler:
        assert ended == []
        assert scheduler.name == "mesh"
    assert ended == ["mesh"]
    assert scheduler.shutdown() == {"success": True}
    assert ended == ["mesh"], "it is ended once"


def test_a_block_leaves_a_detached_scheduler(living, ended):
    living(True)
    for made in (RayScheduler("mesh", detached=True), RayScheduler("mesh")):
        with made as scheduler:
            assert scheduler.supervisor_handle() == "handle"
        with pytest.raises(InvalidRequestError, match=r"detached from scheduler 'mesh'.*attach"):
            scheduler.supervisor_handle()
        with pytest.raises(InvalidRequestError, match="detached from scheduler"):
            scheduler.list_pools()
    assert ended == []


def test_a_block_leaves_a_scheduler_that_was_attached_to(living, ended):
    with RayScheduler.attach("mesh") as scheduler:
        pass
    assert ended == []
    assert scheduler.name == "mesh"


def test_what_the_block_did_itself_is_not_done_again(living, ended):
    with RayScheduler("mesh") as scheduler:
        scheduler.shutdown()
    with RayScheduler("other") as scheduler:
        scheduler.detach()
    assert ended == ["mesh"]


def test_the_error_of_a_block_is_not_replaced_by_that_of_leaving_it(living, monkeypatch, caplog):
    def unavailable(handle, settings, credential):
        raise SchedulerUnavailableError("no sign of life")

    monkeypatch.setattr(connections, "end", unavailable)
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError), RayScheduler("mesh"):
        raise KeyError("x")
    assert "was not shut down: no sign of life" in caplog.text
    with pytest.raises(SchedulerUnavailableError), RayScheduler("mesh"):
        pass


def test_repr_shows_which_scheduler_it_is_and_what_became_of_it(living, ended, monkeypatch):
    scheduler = RayScheduler("mesh", namespace="space", state_path="/data")
    shown = "name='mesh', namespace='space', detached=False, state_path='/data'"
    assert repr(scheduler) == f"<RayScheduler {shown}>"
    scheduler.shutdown()
    assert repr(scheduler) == f"<RayScheduler {shown}, shut down>"
    living(True)
    monkeypatch.setattr(simple_module.ray, "is_initialized", lambda: True)
    simple = SimpleScheduler("m", detached=True, state_path="postgresql://me:secret@db/x")
    simple.detach()
    assert repr(simple) == (
        "<SimpleScheduler name='m', namespace='schedulemesh', detached=True, "
        "state_path='postgresql://me:***@db/x', detached from it>"
    )


def test_a_block_ends_the_ray_that_it_started_unless_a_detached_scheduler_runs_there(
    living, ended, monkeypatch
):
    calls = []
    monkeypatch.setattr(simple_module.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(simple_module.ray, "shutdown", lambda: calls.append("ray"))
    monkeypatch.setattr(simple_module, "join_or_start", lambda options: True)
    with SimpleScheduler("mesh"):
        assert calls == []
    assert (ended, calls) == (["mesh"], ["ray"])
    living(True)
    with SimpleScheduler("kept", detached=True):
        pass
    assert (ended, calls) == (["mesh"], ["ray"])


def test_attaching_starts_no_ray(living, monkeypatch):
    monkeypatch.setattr(simple_module.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(simple_module, "join_running", lambda: False)
    with pytest.raises(SchedulerNotFoundError, match=r"no Ray to find scheduler 'mesh' on"):
        SimpleScheduler.attach("mesh")
    monkeypatch.setattr(simple_module, "join_running", lambda: True)
    assert SimpleScheduler.attach("mesh").name == "mesh"


#: Names of SimpleScheduler for calls of RayScheduler.
SHORTER_NAMES = {
    "complete": "complete_task",
    "configure_preemption": "update_preemption_policy",
    "submit": "submit_task_with_preemption",
}


def public(cls):
    return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}


def test_both_classes_have_the_same_calls():
    assert public(RayScheduler) <= public(SimpleScheduler)
    added = {*SHORTER_NAMES, "submit_spec", "scheduler"}
    assert public(SimpleScheduler) - public(RayScheduler) == added


def test_over_http_every_other_call_says_that_it_needs_ray():
    assert public(RayScheduler) - public(HttpScheduler) == set(NEEDS_RAY)


#: Arguments that a call of SimpleScheduler names differently.
SHORTER = {"pool_name": "pool"}


def parameters(call):
    return [
        (SHORTER.get(p.name, p.name), p.default)
        for p in inspect.signature(call).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]


@pytest.mark.parametrize("name", sorted(public(RayScheduler) & public(SimpleScheduler)))
def test_a_call_of_both_classes_takes_the_same_arguments(name):
    there, here = (getattr(cls, name) for cls in (RayScheduler, SimpleScheduler))
    if callable(there):
        assert parameters(here) == parameters(there)


def namespace_of(scheduler):
    return scheduler._connection.settings.namespace


@pytest.fixture
def in_a_job(monkeypatch):
    """This process as the driver of a job of the scheduler "team" in the namespace "space"."""
    monkeypatch.setenv("SCHEDULEMESH_TASK_ID", "train")
    monkeypatch.setenv("SCHEDULEMESH_NAME", "team")
    monkeypatch.setenv("SCHEDULEMESH_NAMESPACE", "space")


@pytest.mark.parametrize("made", [RayScheduler, RayScheduler.attach])
def test_in_a_job_a_scheduler_without_a_name_is_the_one_that_started_it(
    living, ended, in_a_job, made
):
    with made() as scheduler:
        assert (scheduler.name, namespace_of(scheduler)) == ("team", "space")
    assert ended == [], "it does not belong to the job"
    with made(namespace="space") as scheduler:
        assert scheduler.name == "team"


def test_in_a_job_arguments_that_name_another_scheduler_win(living, ended, in_a_job):
    with RayScheduler("own") as scheduler:
        assert (scheduler.name, namespace_of(scheduler)) == ("own", "schedulemesh")
    with RayScheduler(namespace="elsewhere") as scheduler:
        assert (scheduler.name, namespace_of(scheduler)) == ("head", "elsewhere")
    assert ended == ["own", "head"]


def test_outside_of_a_job_the_environment_names_a_scheduler_that_is_made_where_it_is_missing(
    living, ended, in_a_job, monkeypatch
):
    monkeypatch.delenv("SCHEDULEMESH_TASK_ID")
    with RayScheduler() as scheduler:
        assert (scheduler.name, namespace_of(scheduler)) == ("team", "space")
    assert ended == ["team"], "it is of this job"
    assert namespace_of(RayScheduler("other")) == "schedulemesh"
    assert RayScheduler(namespace="elsewhere").name == "head"


MAKERS = [RayScheduler, RayScheduler.attach, lambda **given: head_of(ScheduleMeshHead(**given))]


def head_of(head):
    return SimpleNamespace(name=head.name, _connection=SimpleNamespace(settings=head._chosen()))


@pytest.mark.parametrize("made", MAKERS)
def test_without_a_name_it_is_the_scheduler_that_lives_or_a_new_one_of_the_same_name_for_all(
    living, registered, made
):
    scheduler = made()
    assert (scheduler.name, namespace_of(scheduler)) == ("head", "schedulemesh")
    registered.append(("space", "exp"))
    scheduler = made()
    assert (scheduler.name, namespace_of(scheduler)) == ("exp", "space")
    scheduler = made(namespace="other")
    assert (scheduler.name, namespace_of(scheduler)) == ("head", "other")
    registered.append(("other", "b"))
    assert made(namespace="other").name == "b"


@pytest.mark.parametrize("made", MAKERS)
def test_of_several_schedulers_one_must_be_named(living, registered, made):
    registered.extend([("schedulemesh", "exp"), ("space", "head")])
    with pytest.raises(
        InvalidRequestError, match=r"2 schedulers live.*'exp' and 'head' \(namespace 'space'\)"
    ):
        made()
    assert made(name="exp").name == "exp"
    assert made(namespace="space").name == "head"


def test_an_agent_has_the_scheduler_that_started_it(living, ended, monkeypatch):
    agent = SimpleNamespace(scheduler="team", namespace="space", task_id="")
    monkeypatch.setattr(origin, "current", lambda: agent)
    with RayScheduler() as scheduler:
        assert (scheduler.name, namespace_of(scheduler)) == ("team", "space")
    assert ended == []


@pytest.mark.parametrize("name", sorted(public(HttpScheduler)))
def test_a_call_over_http_has_the_signature_of_that_over_ray(name):
    there, here = (inspect.getattr_static(cls, name) for cls in (RayScheduler, HttpScheduler))
    if callable(there):
        assert inspect.signature(here) == inspect.signature(there)
        assert here.__doc__ == there.__doc__ or name in OF_CONNECTIONS


#: Calls that a connection documents in its own words.
OF_CONNECTIONS = {"detach"}
