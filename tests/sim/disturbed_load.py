"""A random load during which everything happens from outside that clients, operators and nodes can do."""

from __future__ import annotations

import msgspec

from schedulemesh.config.policy import changed_policy
from schedulemesh.config.queueing import changed_queue_policy
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.sim.cluster import reports
from tests.sim.recorded_load import FOUR, UnevenWorld

_ORDERS = ("priority", "fifo", "shortest_remaining", "two_level_las")


class DisturbedWorld(UnevenWorld):
    """Every few seconds something happens from outside; ``only`` names what may."""

    kinds: tuple[str, ...] = (
        "_cancel",
        "_change_waiting",
        "_evict_one",
        "_cordon",
        "_drain_node",
        "_drain_pool",
        "_lose_or_join",
        "_change_policy",
        "_change_order",
        "_change_quota",
    )

    def __init__(self, *given, seed=1, pause_s=20.0, only=(), nodes=FOUR):
        super().__init__(*given, seed=seed)
        self._nodes = {node.node_id: node for node in reports(nodes)}
        self._all_nodes = dict(self._nodes)
        self._pause_s = pause_s
        self._kinds = [name for name in self.kinds if not only or name in only]
        self.happened = {}
        self._plan()

    def _plan(self):
        if self._kinds:
            self.at(self.now + self._draw.expovariate(1.0 / self._pause_s), self._disturb)

    def _disturb(self):
        kind = self._draw.choice(self._kinds)
        self.happened[kind] = self.happened.get(kind, 0) + 1
        getattr(self, kind)()
        self._plan()

    def _any(self, names):
        names = sorted(names)
        return self._draw.choice(names) if names else None

    def _cancel(self):
        state = self.engine.state
        task_id = self._any([*state.queue.by_id, *state.running.by_id])
        if task_id is not None:
            self.handle(s.TaskCancellationRequested(task_id=task_id))

    def _change_waiting(self):
        task_id = self._any(self.engine.state.queue.by_id)
        how = self._draw.choice(
            (
                {"held": True},
                {"held": False},
                {"priority": 9.0},
                {"priority": 1.0},
                {"to_front": True},
            )
        )
        if task_id is not None:
            self.handle(s.QueuedTaskChanged(task_id=task_id, **how))

    def _evict_one(self):
        task_id = self._any(self.engine.state.running.by_id)
        if task_id is not None:
            self.handle(s.PreemptionRequested(task_id=task_id, end_agent=True, client="me"))

    def _cordon(self):
        node_id = self._any(self._nodes)
        if node_id is not None:
            cordoned = self.engine.state.cluster.nodes[node_id].cordoned
            self.handle(s.CordonRequested(node_id=node_id, cordoned=not cordoned))

    def _drain_node(self):
        node_id = self._any(self._nodes)
        if node_id is not None:
            drained = node_id not in self.engine.state.drains.nodes
            deadline_s = self._draw.choice((None, 30.0))
            self.handle(
                s.DrainRequested(
                    node_id=node_id, drained=drained, deadline_s=deadline_s, client="me"
                )
            )

    def _drain_pool(self):
        drained = not self.engine.state.drains.pools
        name = "a" if drained else next(iter(self.engine.state.drains.pools))
        self.handle(s.DrainRequested(pool_name=name, drained=drained, client="me"))

    def _lose_or_join(self):
        gone = [node_id for node_id in self._all_nodes if node_id not in self._nodes]
        if gone:
            self._nodes[gone[0]] = self._all_nodes[gone[0]]
            self.observe()
        else:
            self._lose(self._any(self._nodes))

    def _change_policy(self):
        limit = self._draw.choice((0.0, 30.0, 120.0))
        policy = changed_policy(self.engine.state.policy, {"min_runtime": limit})
        self.handle(s.PolicyChangeRequested(policy=policy, client="me", changes=("min_runtime",)))

    def _change_order(self):
        order = self._draw.choice(_ORDERS)
        policy = changed_queue_policy(self.engine.state.queue.policy, {"order": order})
        self.handle(s.QueuePolicyChangeRequested(policy=policy, client="me", changes=("order",)))

    def _change_quota(self):
        spec = self.engine.state.ledger.accounts[self._draw.choice("ab")].spec
        gpus = self._draw.choice((8, 12, 16, 20))
        quota = msgspec.structs.replace(spec.resources, gpu=gpus * UNIT)
        self.handle(s.PoolRequested(spec=msgspec.structs.replace(spec, resources=quota)))
