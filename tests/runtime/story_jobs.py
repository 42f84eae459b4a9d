"""Jobs in stories: their drivers, what these hold in Ray beside their runners, and how they end."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.payloads import JobPayload
from schedulemesh.domain.resources import NOTHING, parse_resources, sum_of
from schedulemesh.errors import JournalError
from schedulemesh.protocol.agents import (
    AgentInit,
    CommandResult,
    KeptResult,
    RunReport,
    pack,
    unpack,
)
from schedulemesh.runtime.backend import JobRemains
from schedulemesh.runtime.cluster_usage import ClusterUsage, RayHolder, RayJob
from schedulemesh.runtime.jobs.claims import OWNER

RAISED = RunReport(kept=b"", reason=TaskEndReason.RUN_RAISED, error="exit code 1")
#: Virtual seconds between two looks whether a driver has ended or its runner is dead.
LOOK_S = 0.2
#: Virtual seconds in which a driver ends that heeds its notice.
ENDS_S = 0.5


def job_agent(name, pool, class_key, bundles):
    """A job that claims these bundles; one alone is for one node."""
    return AgentSpec(
        name=name,
        pool_name=pool,
        resources=sum_of(bundles),
        class_key=class_key,
        bundles=bundles if len(bundles) > 1 else (),
        payload=JobPayload(
            grace_s=2.0, over_claim="end", strategy="SPREAD" if len(bundles) > 1 else ""
        ),
    )


class Driver:
    """The driver of one attempt of a job, with the actors that it has in Ray, which outlive it."""

    def __init__(self, actor, job):
        self.actor, self.job = actor, job
        #: How its run has ended; None: it runs.
        self.report = None
        #: What its actors hold, by node: no more than the job claims there.
        self.work = {
            node_id: parse_resources({"cpu": cpu, "gpu": gpu})
            for node_id, (cpu, gpu) in job.claimed.items()
        }
        self.beyond = NOTHING
        #: How often its end has to be asked for before all that it had is gone.
        self.lingers = actor.pid % 3

    def end(self, *, returned=True, cancelled=False):
        if self.report is None:
            kept = pack(KeptResult(value=self.actor.request.name.encode()))
            report = RunReport(kept=kept) if returned else RAISED
            self.report = msgspec.structs.replace(report, cancelled=cancelled)

    async def carry_out(self, command):
        """Obey a command, as the runner of a job does."""
        if command.kind == "notice":
            heeds = bool(self.actor.pid % 2)
            await asyncio.sleep(min(ENDS_S, command.seconds) if heeds else command.seconds)
            if heeds:
                self.end(cancelled=True)
        elif command.kind == "cancel":
            self.end(cancelled=True)
        elif command.kind == "report" and self.report is not None:
            return CommandResult(data=pack(self.report))
        return CommandResult()


class Drivers:
    """All drivers of which something is left in Ray."""

    def __init__(self, seen, broken):
        self._seen, self._broken = seen, broken
        #: By the runner, as the metadata of their Ray jobs name it.
        self.by_owner = {}
        #: Whether drivers run until they are ended; False: they end at once.
        self.run_on = True

    def of(self, actor):
        """The driver of a runner; None: it has none."""
        return next((d for d in self.by_owner.values() if d.actor is actor), None)

    def running(self):
        """The drivers that run, with runners that live."""
        return [d for d in self.by_owner.values() if d.report is None and d.actor.alive]

    def begin(self, actor, job, nodes):
        """Have a runner start its driver, once; nothing of an earlier attempt holds anything by then."""
        driver = self.by_owner.get(job.owner)
        if driver is not None or not actor.alive:
            return driver
        self._seen["a driver began"] += 1
        if any(other.job.task_id == job.task_id for other in self.by_owner.values()):
            self._broken.append(f"two attempts of {job.task_id} hold resources")
        driver = self.by_owner[job.owner] = Driver(actor, job)
        driver.work = {
            node_id: amount for node_id, amount in driver.work.items() if node_id in nodes
        }
        return driver

    async def ended(self, driver):
        """Return once a driver has ended, or its runner is dead."""
        while driver.report is None and driver.actor.alive:
            if not self.run_on:
                driver.end()
            else:
                await asyncio.sleep(LOOK_S)  # virtual time

    def remains(self, owner):
        """What is left of the jobs of an owner, whose end is asked for."""
        driver = self.by_owner.get(owner)
        if driver is None:
            return JobRemains()
        self._seen["the end of a job was asked for"] += 1
        driver.end(cancelled=True)
        node_ids = frozenset(driver.work)
        living = len(driver.work) if driver.lingers else 0
        driver.lingers -= 1
        if not living:
            del self.by_owner[owner]
        return JobRemains(living=living, node_ids=node_ids)

    def lose(self, node_id):
        """A node is lost with what runs there."""
        for driver in self.by_owner.values():
            driver.work.pop(node_id, None)

    def used_on(self, node_id):
        """What the work of jobs holds on a node, within their claims."""
        return sum_of(d.work.get(node_id, NOTHING) for d in self.by_owner.values())

    def usage(self):
        """What Ray's tables say of all of them."""
        jobs, holders = {}, []
        for number, (owner, driver) in enumerate(self.by_owner.items()):
            job_id = f"{number:08x}"
            jobs[job_id] = RayJob(
                job_id=job_id,
                namespace="a driver's",
                metadata={OWNER: owner},
                driver_node_id=driver.actor.node_id,
                driver_pid=driver.actor.pid,
                entrypoint="train",
                started_at=0.0,
                ended=driver.report is not None,
            )
            held = [*driver.work.items()]
            if driver.work and driver.beyond:
                held.append((held[0][0], driver.beyond))
            holders += [
                RayHolder(
                    ray_id=f"{owner} {at}",
                    is_group=False,
                    job_id=job_id,
                    name="",
                    namespace="a driver's",
                    held=(part,),
                )
                for at, part in enumerate(held)
            ]
        return ClusterUsage(jobs=jobs, holders=tuple(holders))


class JobEvents:
    """What happens to the jobs of a story."""

    def driver(self, which):
        """One of the drivers that run; None: none does."""
        running = self.drivers.running()
        return running[which % len(running)] if running else None

    async def driver_ends(self, which, returned):
        """A driver ends by itself."""
        driver = self.driver(which)
        if driver is not None:
            self.seen["a driver ended by itself"] += 1
            driver.end(returned=returned)

    async def evict_driver(self, which, how):
        """A job that runs is evicted, with its runner or without, or cancelled."""
        driver = self.driver(which)
        if driver is not None:
            name = unpack(driver.actor.request.init, AgentInit).agent_name
            if how == "cancel":
                self.cancel_task(f"t-{name}")
            else:
                self.evict(name, whole=how == "preempt")

    async def driver_saves(self, which):
        """A driver says that its work is saved."""
        driver = self.driver(which)
        if driver is not None and self.service._requests is not None:
            init = unpack(driver.actor.request.init, AgentInit)
            # Where the disk fails, the runner says it again later.
            with contextlib.suppress(JournalError):
                await self.service.work_saved(init.agent_name, init.incarnation, init.key, 0.0)

    async def driver_takes_more(self, which):
        """A driver takes more than its job claims."""
        driver = self.driver(which)
        if driver is not None:
            driver.beyond = parse_resources({"cpu": 1})
