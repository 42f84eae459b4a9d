"""How long each phase of a start may take, and what is told of a start while it goes on."""

from __future__ import annotations

import asyncio
import functools
import json
import re

import pytest

from schedulemesh.api.states import SaveTaskState
from schedulemesh.api.tasks import ExplainTask, SubmitTask
from schedulemesh.domain.agent import AgentSpec, Death, StartLimits
from schedulemesh.domain.payloads import RUN_DRIVER, SINGLE_PROCESS, JobPayload
from schedulemesh.domain.resources import parse_resources
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Explained, Response, SavedBytes, decode_answer
from schedulemesh.runtime.agents.start import environment_limit
from schedulemesh.runtime.backend import ActorView
from tests.runtime import life as lives
from tests.runtime.life import CLASS

PIP = json.dumps({"runtime_env": {"pip": ["x"]}})
VARIABLES = json.dumps({"runtime_env": {"env_vars": {"A": "b"}}})
NO_PROCESS = ActorView(node_id="n", has_process=False)


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def submit(life, options="{}", limits=None, payload=SINGLE_PROCESS):
    """Submit a task ``t`` whose process never gets ready, and has none to begin with."""
    life.hold("agent_report")
    life.backend.start = lambda actor: life.backend.views.update({actor: NO_PROCESS})
    agent = AgentSpec(
        name="t",
        pool_name="p",
        resources=parse_resources({"cpu": 1}),
        class_key=key_of(CLASS),
        options=options,
        start_limits=limits,
        payload=payload,
    )
    task = TaskSpec(
        task_id="t", pool_name="p", run=RUN_DRIVER if isinstance(payload, JobPayload) else ""
    )
    stimulus = TaskSubmitted(agent=agent, task=task, request_id="first", choose_node=True)
    return life.ask(SubmitTask(submission=stimulus, blobs={key_of(CLASS): CLASS}))


async def explained(life):
    answer = decode_answer(await life.ask(ExplainTask(task_id="t")), Explained)
    return answer.explanation.detail


async def told(life, phase, ago_s=1.0):
    """Its process has been in this phase for so long."""
    await life.service.start_phase("t", life.incarnation("t"), b"", phase, ago_s)


async def refused(asked):
    return decode_answer(await asked, Response).outcome


@pytest.mark.parametrize(
    ("options", "limits", "limit"),
    [
        (PIP, None, "600 s (setup_timeout_seconds of runtime_env['config'])"),
        (VARIABLES, None, "start_timeout = 120 s"),
        ("{}", None, "start_timeout = 120 s"),
        (json.dumps({"runtime_env": None}), None, "start_timeout = 120 s"),
        (json.dumps({"runtime_env": 7}), None, "start_timeout = 120 s"),
        (PIP, StartLimits(load=7.0), "600 s (setup_timeout_seconds of runtime_env['config'])"),
        (PIP, StartLimits(environment=300.0), "300 s (start_limits['environment'])"),
        ("{}", StartLimits(environment=30.0), "30 s (start_limits['environment'])"),
        (VARIABLES, StartLimits(environment=300.0), "300 s (start_limits['environment'])"),
        ("{}", StartLimits(load=30.0, constructor=30.0), "start_timeout = 120 s"),
        (
            json.dumps({"runtime_env": {"pip": [], "config": {"setup_timeout_seconds": 90}}}),
            None,
            "90 s (setup_timeout_seconds of runtime_env['config'])",
        ),
    ],
)
def test_an_environment_has_a_limit_of_its_own(lived, options, limits, limit):
    seconds = float(re.search(r"(\d+) s", limit)[1])

    async def story(life):
        asked = submit(life, options, limits)
        await asyncio.sleep(seconds - 2.0)  # virtual time
        assert not asked.done()
        await asyncio.sleep(4.0)  # virtual time
        answer = await refused(asked)
        assert answer.reason == "agent_start_timeout"
        assert f"not ready after {limit}: " in answer.error

    lived(story)


@pytest.mark.parametrize(
    ("phase", "limits", "seconds", "was"),
    [
        ("load", None, 120, "its class was still loading"),
        ("constructor", None, 120, "its constructor was running"),
        ("constructor", StartLimits(constructor=1000.0), 1000, "its constructor was running"),
        ("load", StartLimits(load=10.0), 10, "its class was still loading"),
    ],
)
def test_each_further_phase_has_its_own_time(lived, phase, limits, seconds, was):
    async def story(life):
        asked = submit(life, PIP, limits)
        await asyncio.sleep(500.0)  # virtual time
        await told(life, phase)
        await asyncio.sleep(seconds - 3.0)  # virtual time
        assert not asked.done()
        await asyncio.sleep(4.0)  # virtual time
        assert was in (await refused(asked)).error

    lived(story)


def test_explain_says_which_phase_runs_for_how_long_and_how_long_it_may(lived):
    async def story(life):
        submit(life, PIP, StartLimits(constructor=900.0))
        await asyncio.sleep(42.0)  # virtual time
        life.backend.cleaners[0].line = "Collecting torch"
        assert (
            "Ray sets up its runtime environment for 42 s, of at most 600 s; last line: Collecting torch"
        ) in await explained(life)
        await told(life, "load", 3.0)
        assert "loads its class and arguments for 3 s, of at most 120 s" in await explained(life)
        await told(life, "constructor", 5.0)
        await asyncio.sleep(10.0)  # virtual time
        assert "its constructor runs for 15 s, of at most 900 s" in await explained(life)
        await told(life, "load", 3.0)
        assert "its constructor runs" in await explained(life), "a late message changes nothing"

    lived(story)


def test_a_start_without_an_environment_is_not_said_to_have_one(lived):
    async def story(life):
        submit(life)
        await asyncio.sleep(7.0)  # virtual time
        assert "Ray starts its process for 7 s, of at most 120 s" in await explained(life)

    lived(story)


def test_a_caller_waits_as_long_as_a_start_may_take(lived):
    async def story(life):
        _, before_s = await life.service.alive()
        submit(life, PIP, StartLimits(constructor=5000.0))
        await asyncio.sleep(1.0)  # virtual time
        _, during_s = await life.service.alive()
        assert during_s - before_s >= 5600.0

    lived(story)


def test_the_log_of_a_job_says_why_its_environment_failed(lived):
    detail = "Installing\nERROR: no such package\n"
    how = "was not started: its runtime environment could not be set up: ERROR: no such package"

    async def story(life):
        life.held.through.add("end_jobs")
        asked = submit(life, PIP, payload=JobPayload())
        report = await life.held.next("agent_report")
        (actor,) = life.backend.actors
        life.backend.deaths[actor.request.name] = Death(how=how, detail=detail)
        actor.alive = False
        report.let()
        assert how in (await refused(asked)).error
        (written,) = [each for one in life.backend.cleaners for each in one.written]
        assert written[:2] == ("t", 1)
        assert written[2].splitlines() == [
            f"[schedulemesh] agent 't': its process {how}",
            "[schedulemesh] Installing",
            "ERROR: no such package",
        ]

    lived(story)


@pytest.mark.parametrize(
    ("config", "seconds"),
    [({}, 600.0), ({"setup_timeout_seconds": 5}, 5.0), ({"setup_timeout_seconds": -1}, 1e9)],
)
def test_the_limit_of_an_environment_is_that_of_ray(config, seconds):
    assert environment_limit({"config": config}) == seconds


def test_a_task_that_starts_cannot_be_saved_and_what_to_do_is_said(lived):
    async def story(life):
        submit(life)
        await asyncio.sleep(1.0)  # virtual time
        answer = decode_answer(await life.ask(SaveTaskState(task_id="t")), SavedBytes)
        assert answer.reason == "task_not_running"
        assert answer.error == (
            "task 't' does not run (it is starting), so there is no state to save"
        )
        assert answer.hint == "save it again when it runs"

    lived(story)
