"""A Ray of placement groups and actors, for the executor: what it is told it remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ray.exceptions import RayActorError, RaySystemError

from schedulemesh.core.backend.ray_backend import ActorView
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


class FakeHelper:
    """A helper of the supervisor on another node; it raises or answers what it is told to."""

    def __init__(self, helper, node_id):
        self.helper, self.node_id = helper, node_id
        self.calls = []
        self.alive = True
        self.raises = None
        self.answers = []

    async def answer(self, method, args):
        self.calls.append((method, args))
        if self.raises is not None:
            raise self.raises
        return self.answers.pop(0) if self.answers else ()


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
        self.start = lambda actor: None
        self.probes = []
        self.devices = Accelerators(ids=("3",), env_vars={"CUDA_VISIBLE_DEVICES": "3"})
        self.free = {}
        self.asked = []
        #: Actors that the supervisor has on other nodes, and what becomes of their calls.
        self.helpers = []
        #: What Ray knows of actors; of all others that they live on the supervisor's node.
        self.views = {}
        #: Whether Ray has an actor wait for room.
        self.waiting = lambda actor: False
        self.looks = []
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

    # processes
    def own_node_id(self):
        return "own"

    def session_folder(self):
        return Path("/tmp/ray/session_of_the_fake")

    def start_helper(self, cls, node_id):
        helper = FakeHelper(cls(), node_id)
        self.helpers.append(helper)
        return helper

    def waits_for_room(self, actor):
        self.looks.append(actor)
        return self.waiting(actor)

    def actor(self, actor):
        return self.views.get(actor, ActorView(node_id="own", has_process=True))

    # actors
    def start_actor(self, request):
        actor = FakeActor(request)
        self.actors.append(actor)
        self.start(actor)
        return actor

    def find_actor(self, name, namespace):
        return None

    def kill_actor(self, actor):
        actor.alive = False

    async def call(self, actor, method, *args):
        if isinstance(actor, FakeHelper):
            return await actor.answer(method, args)
        actor.calls.append((method, args))
        if actor.stuck is not None:
            await actor.stuck
        if not actor.alive:
            raise RayActorError
        return pack(actor.answers.get(method, Report(node_id="n", pid=1)))

    async def run(self, function, args, timeout_s, runtime_env, slot=None):
        self.probes.append((function.__name__, slot))
        await asyncio.sleep(0)
        if self.devices is None:
            raise TimeoutError("not done")
        return pack(self.devices)

    def living(self):
        """The names of the actors that live."""
        return {actor.request.name for actor in self.actors if actor.alive}
