"""A Ray of placement groups and actors, for the hands: what it is told it remembers."""

from __future__ import annotations

import asyncio

from ray.exceptions import RayActorError, RaySystemError

from schedulemesh.core.backend.ray_groups import GroupView
from schedulemesh.protocol.agents import Accelerators, Handled, Report, pack


class FakeActor:
    """An actor that answers at once, or when it is told to."""

    def __init__(self, request):
        self.request = request
        self.alive = True
        self.answers = {"schedulemesh_ready": Handled()}
        self.calls = []
        self.stuck = None


class FakeRay:
    """Groups are placed where they are pinned as soon as somebody looks, unless their node is full."""

    def __init__(self):
        self.by_id = {}
        self.made = 0
        self.removed = []
        self.actors = []
        #: Nodes where nothing can be placed now.
        self.full = set()
        #: What becomes of an actor when it is made.
        self.birth = lambda actor: None
        self.probes = []
        self.devices = Accelerators(ids=("3",), env_vars={"CUDA_VISIBLE_DEVICES": "3"})
        self.free = {}
        self.asked = []
        self.kept = {}

    # Ray's own store
    def recall(self, key):
        return self.kept.get(key)

    def keep(self, key, value):
        self.kept[key] = value

    # placement groups
    def create_group(self, request):
        if request.name in {view.name for view in self.by_id.values()}:
            raise RaySystemError("the name is taken")
        self.made += 1
        ray_id = f"{self.made:036x}"
        self._put(ray_id, request.name, "PENDING", ("",) * len(request.node_ids))
        self._pinned(ray_id, request.node_ids)
        return ray_id

    def _put(self, ray_id, name, state, node_ids):
        self.by_id[ray_id] = GroupView(ray_id=ray_id, name=name, state=state, node_ids=node_ids)

    def _pinned(self, ray_id, node_ids):
        if not self.full & set(node_ids):
            self._put(ray_id, self.by_id[ray_id].name, "CREATED", node_ids)

    def groups(self):
        return list(self.by_id.values())

    def group(self, ray_id):
        return self.by_id.get(ray_id)

    def remove_group(self, ray_id):
        self.removed.append(ray_id)
        self.by_id.pop(ray_id, None)

    def nodes(self):
        return self.free

    def ask_autoscaler(self, bundles):
        self.asked.append(bundles)

    # actors
    def start_actor(self, request):
        actor = FakeActor(request)
        self.actors.append(actor)
        self.birth(actor)
        return actor

    def find_actor(self, name, namespace):
        return None

    def kill_actor(self, actor):
        actor.alive = False

    async def call(self, actor, method, *args):
        actor.calls.append((method, args))
        if actor.stuck is not None:
            await actor.stuck
        if not actor.alive:
            raise RayActorError
        return pack(actor.answers.get(method, Report(node_id="n", pid=1)))

    async def run(self, function, args, timeout_s, runtime_env, seat=None):
        self.probes.append((function.__name__, seat))
        await asyncio.sleep(0)
        if self.devices is None:
            raise TimeoutError("not done")
        return pack(self.devices)

    def living(self):
        """The names of the actors that live."""
        return {actor.request.name for actor in self.actors if actor.alive}
