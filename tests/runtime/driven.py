"""A mesh whose engine is that of a whole supervisor, and whose executor is the test."""

from __future__ import annotations

from tests.engine.builders import Mesh


class Driven(Mesh):
    """Each stimulus is a step of the supervisor's reactor, and nothing but the test carries out orders."""

    def __init__(self, service, *pools, nodes=()):
        self.service = service
        executor, reactor = service.running.executor, service.running.reactor
        reactor._subscribers.remove(executor.take)
        super().__init__(*pools, nodes=nodes)

    @property
    def state(self):
        return self.service.running.reactor.state

    def handle(self, stimulus):
        step = self.service.do(self.service.running.reactor.step(stimulus))
        self.facts += step.facts
        for order in step.instructions:
            self._take_order(order)
        self.starts = {n: o for n, o in self.starts.items() if self._lives(n, o.incarnation)}
        self.ends = {n: o for n, o in self.ends.items() if self._lives(n, o.incarnation)}
        return step
