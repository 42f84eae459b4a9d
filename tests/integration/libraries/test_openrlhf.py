"""OpenRLHF's own launcher in given placement groups.

The launcher imports vLLM and DeepSpeed, which need GPUs; modules without contents stand for them here. What
is run is OpenRLHF's code that creates placement groups and starts actors in them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from schedulemesh.errors import GroupNotLeasedError
from schedulemesh.integrations import capture

pytestmark = [
    pytest.mark.filterwarnings("default"),  # OpenRLHF's own
    pytest.mark.skipif(
        importlib.util.find_spec("openrlhf") is None, reason="openrlhf is not installed"
    ),
]

PAIR = [{"GPU": 1.0, "CPU": 1.0}] * 2
#: What the launcher imports and does not use to create actors, with the names that it imports.
NOT_HERE = {
    "vllm": [],
    "vllm.inputs": ["TokensPrompt"],
    "vllm.utils": ["random_uuid"],
    "openrlhf.models": ["Actor", "get_llm_for_sequence_regression"],
    "openrlhf.utils.agent": ["AgentExecutorBase", "SingleTurnAgentExecutor"],
    "openrlhf.utils.deepspeed": ["DeepspeedStrategy"],
}


@pytest.fixture
def launcher(monkeypatch):
    """The module openrlhf.trainer.ray.launcher."""
    for name, contents in NOT_HERE.items():
        module = ModuleType(name)
        for each in contents:
            setattr(module, each, type(each, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    before = set(sys.modules)
    yield importlib.import_module("openrlhf.trainer.ray.launcher")
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "openrlhf":
            del sys.modules[name]


@pytest.fixture
def groups(ray_cluster):
    """Both GPUs of the cluster, as a lease holds them."""
    made = placement_group(PAIR, strategy="PACK", lifetime="detached")
    ray.get(made.ready())
    yield [made]
    remove_placement_group(made)


@ray.remote
class Model:
    """In place of a model of OpenRLHF: what its launcher calls while it starts actors."""

    def __init__(self, world_size, rank, master_addr, master_port):
        self.rank = rank

    def get_master_addr_port(self):
        return "127.0.0.1", 29500

    def group(self):
        return self.rank, ray.util.get_current_placement_group()


def members(group):
    return ray.get(group.async_run_method("group"), timeout=60)


def end(group):
    for actor in group._actor_handlers:
        ray.kill(actor)


def test_an_actor_group_creates_its_placement_group_in_the_lease(launcher, groups):
    with capture(groups, strict=True) as captured:
        actors = launcher.RayActorGroup(1, 2, Model)
        try:
            assert members(actors) == [(0, groups[0]), (1, groups[0])]
            assert captured.free == []
            with pytest.raises(GroupNotLeasedError, match="group 0 is in use"):
                launcher.RayActorGroup(1, 2, Model)
        finally:
            end(actors)


def test_actor_groups_share_a_group_of_the_lease_that_is_given(launcher, groups):
    """As train_ppo_ray does for models on the same GPUs."""
    both = [launcher.RayActorGroup(1, 2, Model, groups[0], 0.2) for _ in range(2)]
    try:
        assert [members(group) for group in both] == [[(0, groups[0]), (1, groups[0])]] * 2
    finally:
        for group in both:
            end(group)


def test_engines_create_their_placement_group_in_the_lease(launcher, groups):
    """The engines end at once where vLLM cannot be imported; the group was taken before."""
    engines = importlib.import_module("openrlhf.trainer.ray.vllm_engine")
    with capture(groups, strict=True) as captured:
        started = engines.create_vllm_engines(
            num_engines=2,
            tensor_parallel_size=1,
            pretrain="none",
            seed=0,
            full_determinism=False,
            enable_prefix_caching=False,
            enforce_eager=True,
            max_model_len=8,
        )
        assert len(started) == 2
        assert captured.free == []
    for engine in started:
        ray.kill(engine)
