"""How actors died, from entries of Ray's actor table as Ray 2.60 has written them."""

from __future__ import annotations

import pytest
from ray.core.generated import common_pb2, gcs_pb2

from schedulemesh.core.backend import ray_deaths
from schedulemesh.core.backend.environment_errors import cause_of

ACTOR = "7ad0ed1bd7a9e0c25008a27c01000000"
NODE = "117c965566487c9470ee0ebfbff21152aaf65382c3c2f7ddae034a57"
DIED = "The actor is dead because its worker process has died. Worker exit type: "
CLOSED = (
    "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of "
    "file. Some common causes include: (1) the process was killed by the OOM killer due to high memory "
    "usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV"
)
OOM = f"""2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: \
192.0.2.2, ID: {NODE}) was 2.90GB used / 23.54GB limit (0.123290)
OOM kill reason: Memory usage 3060506624B exceeded threshold of 2986780160B (11.8% of 25276510208B limit)
Considered workers: [
Selected to kill: (Actor(e37f306e0a88c9b41f99443601000000): job ID=01000000, lease ID=00, task \
name=sup:A.__init__, required resources={{CPU: 0.1}}, pid=21749, actual memory used=0.06GB, worker ID=d5)
Selected to kill: (Actor({ACTOR}): job ID=01000000, lease ID=08, task name=A.__init__, required \
resources={{CPU: 0.1}}, pid=22274, actual memory used=1.86GB, worker ID=dd)
]"""


def entry(**cause):
    return gcs_pb2.ActorTableData(
        actor_id=bytes.fromhex(ACTOR),
        name="a",
        ray_namespace="space",
        state=gcs_pb2.ActorTableData.DEAD,
        death_cause=common_pb2.ActorDeathCause(**cause),
    )


def died(message, reason="WORKER_DIED", **more):
    reason = common_pb2.ActorDiedErrorContext.Reason.Value(reason)
    context = common_pb2.ActorDiedErrorContext(error_message=message, reason=reason, **more)
    return entry(actor_died_error_context=context)


@pytest.fixture
def found(monkeypatch):
    def of(*entries):
        data = [each.SerializeToString() for each in entries]
        monkeypatch.setattr(ray_deaths, "actor_entries", lambda _states: data)
        return ray_deaths.deaths_of({("space", "a")})

    return of


@pytest.mark.parametrize(
    ("data", "how"),
    [
        (died(DIED + CLOSED), "ended without notice to Ray: it was killed"),
        (
            died(
                DIED
                + "SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly. Worker exits with "
                "an exit code 3."
            ),
            "exited with code 3",
        ),
        (
            died(
                DIED
                + "INTENDED_USER_EXIT Worker exit detail: Worker exits by an user request. Worker "
                "exits with an exit code 0. exit_actor() is called."
            ),
            "called exit_actor()",
        ),
        # What Ray says instead where another call of an async actor is the first to see the request.
        (
            died(DIED + "INTENDED_USER_EXIT Worker exit detail: User requested to exit the actor."),
            "called exit_actor()",
        ),
        (
            died(
                DIED + "SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. "
                "SystemExit is raised (sys.exit is called). Exit code: 1. The process receives a SIGTERM."
            ),
            "was ended by SIGTERM",
        ),
        (died("The actor is dead because it was killed by `ray.kill`.", "RAY_KILL"), "ray.kill()"),
        (
            died(
                "it died",
                "NODE_DIED",
                node_death_info=common_pb2.NodeDeathInfo(reason_message="health check failed"),
            ),
            "which has died: health check failed",
        ),
        (died("what no version has said yet\nand more"), "died: what no version has said yet"),
        (died(""), "died"),
        (entry(), "died, and Ray does not say how"),
        (
            entry(
                actor_unschedulable_context=common_pb2.ActorUnschedulableContext(
                    error_message="the node is gone."
                )
            ),
            "was not started: Ray cannot place it: the node is gone",
        ),
    ],
)
def test_a_death_is_one_clause(found, data, how):
    death = found(data)[("space", "a")]
    assert how in death.how
    assert "\n" not in death.how
    assert not death.out_of_memory


def test_a_lack_of_memory_is_told_with_its_figures(found):
    death = found(entry(oom_context=common_pb2.OomContext(error_message=OOM)))[("space", "a")]
    assert death.how == (
        f"was killed by Ray because node {NODE} was short of memory: it had 1.86 GB, and 2.90 of 23.54 GB "
        "were in use there"
    )
    assert death.out_of_memory
    assert death.memory_mb == pytest.approx(1.86 * 1024)


def test_a_lack_of_memory_without_figures_is_one_all_the_same(found):
    death = found(entry(oom_context=common_pb2.OomContext(error_message="?")))[("space", "a")]
    assert death.how == "was killed by Ray because its node was short of memory"
    assert (death.out_of_memory, death.memory_mb) == (True, 0.0)


def test_of_several_actors_of_a_name_the_last_counts(found):
    first, last = died("one"), died("two")
    first.end_time, last.end_time = 1, 2
    assert found(last, first)[("space", "a")].how == "died: two"


def test_actors_of_other_names_are_left_out(found):
    other = died("one")
    other.name = "b"
    assert found(other) == {}


UNSCHEDULABLE = entry(
    actor_unschedulable_context=common_pb2.ActorUnschedulableContext(
        error_message="The node specified via NodeAffinitySchedulingStrategy doesn't exist any more"
    )
)


@pytest.mark.parametrize(
    ("data", "lost"),
    [
        (died("The actor died because its node has died.", "NODE_DIED"), True),
        (UNSCHEDULABLE, True),
        (died(DIED + CLOSED), False),
        (died("The actor is dead because it was killed by `ray.kill`.", "RAY_KILL"), False),
        (entry(oom_context=common_pb2.OomContext(error_message=OOM)), False),
        (gcs_pb2.ActorTableData(state=gcs_pb2.ActorTableData.ALIVE), False),
        (None, False),
    ],
)
def test_a_node_or_place_that_is_gone_is_told_from_other_deaths(monkeypatch, data, lost):
    monkeypatch.setattr(ray_deaths, "actor_data", lambda _handle: data)
    assert ray_deaths.has_lost_room(None) is lost


PIP = """Could not create the actor because its associated runtime env failed to be created.
[Node 192.0.2.2] Traceback (most recent call last):
  File "/x/ray/_private/runtime_env/pip.py", line 361, in _run
    await self._install_pip_packages(
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[5] failed with the following details.
Command '['/tmp/python', '-m', 'pip', 'install']' returned non-zero exit status 1.
Last 50 lines of stdout:
    Looking in indexes: https://example.org/simple
    ERROR: Could not find a version that satisfies the requirement nope (from versions: none)
    ERROR: No matching distribution found for nope
"""


#: Of Ray 2.60 with pip 26 and uv 0.11, without an index, as it was there word for word but for the paths.
PIP_WITHOUT_INDEX = """Could not create the actor because its associated runtime env failed to be created.
[Node 192.0.2.2] Traceback (most recent call last):
  File "/x/ray/_private/runtime_env/agent/runtime_env_agent.py", line 561, in _create_runtime_env_with_retry
    runtime_env_context = await asyncio.wait_for(
                          ^^^^^^^^^^^^^^^^^^^^^^^
  File "/x/ray/_private/runtime_env/utils.py", line 105, in check_output_cmd
    raise SubprocessCalledProcessError(
ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[3] failed with the following details.
Command '['/y/virtualenv/bin/python', '-m', 'pip', 'install', '-r', '/y/requirements.txt', '--no-index',\
 '--disable-pip-version-check']' returned non-zero exit status 1.
Last 50 lines of stdout:
    Looking in links: /opt/wheels
    ERROR: Could not find a version that satisfies the requirement no-such-package-x (from versions: none)
    ERROR: No matching distribution found for no-such-package-x

"""
NO_FILE = """Traceback (most recent call last):
  File "x.py", line 1, in f
    open(uri)
FileNotFoundError: [Errno 2] No such file or directory: '/nope.zip'
"""
UV_TODAY = """ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[8] failed with the \
following details.
Last 50 lines of stdout:
    Using Python 3.11.7 environment at: /y/virtualenv
    error: No solution found when resolving dependencies
      cause: Because no-such-package-x was not found in the cache and you require no-such-package-x, we can \
conclude that your requirements are unsatisfiable.

    hint: Packages were unavailable because the network was disabled. When the network is disabled, registry \
packages may only be read from the cache.
"""
UV_WITHOUT_NETWORK = """Last 50 lines of stdout:
    error: Failed to fetch: `https://example.org/simple/x/`
      Caused by: Request failed after 3 retries
      Caused by: dns error
    Installing nothing
"""
UV = """Last 50 lines of stdout:
      × No solution found when resolving dependencies:
      ╰─▶ Because nope was not found
"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            PIP,
            "ERROR: Could not find a version that satisfies the requirement nope",
        ),
        (NO_FILE, "FileNotFoundError: [Errno 2] No such file or directory: '/nope.zip'"),
        (
            PIP_WITHOUT_INDEX,
            "ERROR: Could not find a version that satisfies the requirement no-such-package-x",
        ),
        (
            UV_TODAY,
            (
                "error: No solution found when resolving dependencies: Because no-such-package-x was not "
                "found in the cache and you require no-such-package-x, we can conclude that your "
                "requirements are unsatisfiable."
            ),
        ),
        (
            UV_WITHOUT_NETWORK,
            (
                "error: Failed to fetch: `https://example.org/simple/x/`: Request failed after 3 retries: "
                "dns error"
            ),
        ),
        (UV, "No solution found when resolving dependencies: Because nope was not found"),
        ("Failed to setup the environment\\nERROR: no disk\\n", "ERROR: no disk"),
        ("it went wrong", "it went wrong"),
        ("", "Ray does not say why"),
        ("ERROR: " + "x" * 10_000, "ERROR: " + "x" * 493 + "..."),
    ],
)
def test_the_cause_of_a_failed_environment_is_one_line(message, cause):
    assert cause_of(message) == cause
