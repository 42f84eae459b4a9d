"""What budgets are to be charged for, summed up from the facts about processes alone."""

from __future__ import annotations

from schedulemesh.domain.budgets import budget_of
from schedulemesh.domain.resources import UNIT
from schedulemesh.engine.messages.facts import AgentAdmitted, AgentEnded, AgentStarted, PoolEnsured
from schedulemesh.engine.messages.pool_facts import PoolDeleted, PoolRenamed
from tests.store.crash_definitions import OWNERS

DAY_S = 86_400.0


class Process:
    """The process of an agent, and who pays for it."""

    def __init__(self, pool_name, owner, gpus):
        self.pool_name, self.owner, self.gpus = pool_name, owner, gpus
        #: When it began, and when it was gone; None: not yet.
        self.began = self.ended = None

    def gpu_s(self, since, until):
        """Its GPU-seconds between two times."""
        if self.began is None:
            return 0.0
        ended = until if self.ended is None else self.ended
        return self.gpus * max(0.0, ended - max(self.began, since))


class Use:
    """All processes that ran, and since when each budget counts; all budgets are for days, in UTC."""

    def __init__(self):
        #: All, and by the agent those that may run.
        self.processes, self.by_agent = [], {}
        #: By pool and owner; None: the pool as a whole.
        self.since = {}

    def note(self, fact):
        """Take what a durable fact says."""
        if isinstance(fact, AgentAdmitted):
            owner = "" if fact.task is None else fact.task.owner
            gpus = fact.agent.resources.gpu / UNIT
            process = self.by_agent[fact.agent.name] = Process(fact.agent.pool_name, owner, gpus)
            self.processes.append(process)
        elif isinstance(fact, AgentStarted):
            self.by_agent[fact.agent_name].began = fact.at
        elif isinstance(fact, AgentEnded):
            self.by_agent.pop(fact.agent_name).ended = fact.at
        elif isinstance(fact, PoolEnsured):
            self.note_pool(fact.spec, fact.at)
        elif isinstance(fact, PoolRenamed):
            self.rename(fact.pool_name, fact.new_name)
        elif isinstance(fact, PoolDeleted):
            self.since = {key: at for key, at in self.since.items() if key[0] != fact.pool_name}

    def note_pool(self, spec, at):
        """Budgets that the pool did not have count from now on."""
        for owner in (None, *OWNERS):
            budget = spec.budget if owner is None else budget_of(spec.owner_budgets, owner)
            if budget is None:
                self.since.pop((spec.name, owner), None)
            else:
                self.since.setdefault((spec.name, owner), at)

    def rename(self, name, new_name):
        """What the pool has used goes with its name."""
        for owner in (None, *OWNERS):
            self.since.pop((new_name, owner), None)
            if (name, owner) in self.since:
                self.since[new_name, owner] = self.since.pop((name, owner))
        for process in self.processes:
            if process.pool_name == new_name:
                process.pool_name = None
            if process.pool_name == name:
                process.pool_name = new_name

    def gpu_s(self, pool_name, owner, now):
        """The GPU-seconds that are charged to a budget in the day of ``now``."""
        since = max(self.since[pool_name, owner], now // DAY_S * DAY_S)
        return sum(
            process.gpu_s(since, now)
            for process in self.processes
            if process.pool_name == pool_name and owner in (None, process.owner)
        )
