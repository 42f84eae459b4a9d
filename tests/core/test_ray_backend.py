"""What the runtime sees of Ray: errors of its own, hosts under the scheduler's terms, cleaners of nodes."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from ray.exceptions import RayError, RaySystemError

from schedulemesh.core.backend import node_cleaner, ray_backend, ray_groups
from schedulemesh.core.backend.node_cleaner import OwnNodeCleaner
from schedulemesh.core.backend.ray_backend import RayBackend
from schedulemesh.core.backend.ray_errors import refused, translated
from schedulemesh.domain.placement import PART_JOINT, GroupShape
from schedulemesh.domain.resources import NOTHING, parse_resources
from schedulemesh.protocol.agents import Accelerators, ShippedClass, pack
from schedulemesh.runtime.backend import (
    AgentRequest,
    Backend,
    BackendError,
    BundleSlot,
    Process,
    WarmHostRequest,
)

SHIPPED = pack(ShippedClass(name="C", methods=(), code=b""))
NODE = "ab" * 28
SLOT = BundleSlot(ray_id="0" * 36, shape=GroupShape(bundles=(parse_resources({"cpu": 1}),)))


def entry(name):
    """What Ray's table says of a placement group."""
    return {"name": name, "state": "CREATED", "bundles_to_node_id": {0: NODE}}


@pytest.mark.parametrize(
    "name",
    [
        "train#part",
        "train#part1",
        "train#part1/",
        "#part/",
        "a#partb/c",
        "a#part0/999999999",
        "a#part5/2",
    ],
)
def test_placement_groups_of_others_have_any_name(monkeypatch, name):
    table = {"1": entry(name), "2": entry("ours#part0/2"), "3": entry("ours#part1/2")}
    monkeypatch.setattr(ray_groups, "placement_group_table", lambda: table)
    views = {view.name: view for view in ray_groups._all_groups()}
    assert views["ours"].ray_id == PART_JOINT.join("23")
    assert views["ours"].state == "CREATED"
    assert views.keys() <= {"ours", name, "a"}


class Context:
    current_actor = "the supervisor"

    def get_node_id(self):
        return "own"


@pytest.fixture
def made(monkeypatch):
    """The actors that were made: class, concurrency groups, options, arguments."""
    found = []

    class Made:
        def __init__(self, cls, groups):
            self.of = cls, groups

        def options(self, **options):
            self.given = options
            return self

        def remote(self, *args):
            found.append((*self.of, self.given, args))
            return "a handle"

    monkeypatch.setattr(ray_backend.ray, "get_runtime_context", Context)
    monkeypatch.setattr(ray_backend, "actor_class", Made)
    monkeypatch.setattr(ray_backend, "scheduling_strategy_of", lambda slot: ("in", slot))
    return found


@pytest.fixture
def backend(made) -> Backend:
    return RayBackend()


def agent(**more):
    given = {
        "class_key": "k",
        "shipped": SHIPPED,
        "name": "a",
        "namespace": "space",
        "resources": parse_resources({"cpu": 2}),
        "node_id": NODE,
        "slot": None,
        "options": {"name": "mine", "max_restarts": 2, "concurrency_groups": {"io": 2}},
        "init": b"init",
        "refs": (["whole"], ["nested"]),
    }
    return AgentRequest(**{**given, **more})


def warm(**more):
    given = {
        "class_key": "k",
        "shipped": SHIPPED,
        "name": "w",
        "namespace": "space",
        "slot": SLOT,
        "options": {"num_cpus": 4},
        "accelerators": Accelerators(),
        "mark": 7,
    }
    return WarmHostRequest(**{**given, **more})


def test_an_agent_is_a_detached_actor_where_the_scheduler_puts_it(backend, made):
    assert backend.start_agent(agent()) == "a handle"
    ((cls, of_the_class, options, args),) = made
    assert (cls.__name__, of_the_class) == ("C", {"concurrency_groups": {"io": 2}})
    assert (options["name"], options["namespace"], options["lifetime"]) == (
        "a",
        "space",
        "detached",
    )
    assert (options["num_cpus"], options["max_restarts"]) == (2.0, 2)
    assert options["scheduling_strategy"].node_id == NODE
    assert args == (b"init", "the supervisor", ["whole"], ["nested"])
    backend.start_agent(agent(slot=SLOT, name="b"))
    assert made[1][2]["scheduling_strategy"] == ("in", SLOT)
    assert made[1][0] is cls, "Ray exports each class anew"


def test_a_warm_host_takes_nothing_of_its_group(backend, made):
    backend.start_warm_host(warm())
    ((_, _, options, args),) = made
    assert options["num_cpus"] == options["num_gpus"] == NOTHING.cpu
    assert options["scheduling_strategy"] == ("in", SLOT)
    assert args == (SHIPPED, Accelerators(), "the supervisor", 7)


def test_whatever_refuses_an_actor_is_a_backend_error(backend, monkeypatch):
    def broken(cls, groups):
        raise ValueError("no such option")

    monkeypatch.setattr(ray_backend, "actor_class", broken)
    with pytest.raises(BackendError, match="no such option"):
        backend.start_agent(agent())
    with pytest.raises(BackendError, match="no such option"):
        backend.start_warm_host(warm())
    with pytest.raises(BackendError, match="missing required field"):
        backend.start_warm_host(warm(class_key="other", shipped=pack(Accelerators())))


def test_an_error_of_ray_is_told_on_one_line_and_kept_as_the_cause():
    died = RayError("it died\n\tactor_id: 1\nof this. Some common causes include: many")
    with pytest.raises(BackendError) as told, translated():
        raise died
    assert str(told.value) == "it died of this."
    assert told.value.__cause__ is died


def test_only_errors_of_ray_are_translated_where_nothing_is_refused():
    with pytest.raises(KeyError), translated():
        raise KeyError("ours")
    with pytest.raises(BackendError), refused():
        raise KeyError("an option")


def test_a_blocking_call_that_fails_is_a_backend_error(backend, monkeypatch):
    def gone(*_args):
        raise RaySystemError("the name is taken")

    monkeypatch.setattr(ray_groups, "remove_settled", gone)
    monkeypatch.setattr(ray_backend, "_nodes", gone)
    for call in (backend.remove_group("0" * 36), backend.nodes()):
        with pytest.raises(BackendError, match="the name is taken"):
            asyncio.run(call)


def test_the_supervisor_cleans_its_own_node_itself(backend, monkeypatch):
    ended = []

    async def terminate(mark):
        ended.append(mark)
        return ()

    monkeypatch.setattr(node_cleaner, "terminate", terminate)
    monkeypatch.setattr(node_cleaner, "kill", ended.extend)
    monkeypatch.setattr(node_cleaner, "left_behind", lambda hosts: {mark: [] for mark in hosts})

    async def story():
        cleaner = backend.node_cleaner("own")
        assert isinstance(cleaner, OwnNodeCleaner)
        assert await cleaner.terminate(3) == ()
        assert await cleaner.left_behind({4: 10}) == {4: []}
        await cleaner.kill([(1, 2)])

    asyncio.run(story())
    assert ended == [3, Process(began=1, pid=2)]


def test_a_node_lives_as_long_as_its_raylet(monkeypatch):
    raylet = subprocess.Popen(["sleep", "60"])
    monkeypatch.setenv("RAY_RAYLET_PID", str(raylet.pid))
    cleaner = OwnNodeCleaner()
    assert asyncio.run(cleaner.node_lives())
    raylet.kill()
    raylet.wait()
    assert not asyncio.run(cleaner.node_lives())
    monkeypatch.delenv("RAY_RAYLET_PID")
    assert asyncio.run(cleaner.node_lives())
