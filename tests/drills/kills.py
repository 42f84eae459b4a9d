"""All kinds of kills, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.drills.disk_faults import DiskFaults
from tests.drills.kill_agents import AgentKills
from tests.drills.kill_batch import BatchKills
from tests.drills.kill_drivers import DriverKills
from tests.drills.kill_first_start import FirstStartKills
from tests.drills.kill_queued import QueuedWorkKills
from tests.drills.kill_supervisor import OPERATIONS, SupervisorKills


class AllKills(
    SupervisorKills,
    QueuedWorkKills,
    AgentKills,
    BatchKills,
    DriverKills,
    DiskFaults,
    FirstStartKills,
):
    """All kinds of kills in one object."""

    def kinds(self) -> dict[str, Callable[[], float | None]]:
        """Maps the name of each kind to its method."""
        own = {
            "supervisor, idle": self.supervisor_idle,
            "supervisor, stopped": self.supervisor_stopped,
            "supervisor, in mid-recovery": self.supervisor_twice,
            "supervisor, in mid-history": self.supervisor_in_history,
            "supervisor, with work that waits and runs": self.supervisor_with_queued_work,
            "supervisor and an agent at once": self.supervisor_and_agent,
            "agent, at work": self.agent_at_work,
            "agent, in its constructor": self.agent_in_constructor,
            "agent, in mid-eviction": self.agent_in_eviction,
            "agent, stopped": self.agent_stopped,
            "worker of a preserver": self.preserver,
            "driver of a job": self.driver_of_a_job,
            "runner of a job": self.runner_of_a_job,
            "member of a gang": self.member_of_a_gang,
            "member of an array": self.member_of_an_array,
            "supervisor and a job, gang or array at once": self.supervisor_and_batch,
            "driver, detached": self.driver_detached,
            "driver, not detached": self.driver_tied,
            "journal's disk full": self.disk_full,
            "journal's disk full, and the supervisor": self.disk_full_and_killed,
            "garbage at the journal's end": self.garbage,
            "supervisor, during its first start": self.first_start,
            "supervisor, and its journal replaced by a backup": self.backup_restored,
        }
        if self.disk is not None:
            own["journal's disk read-only, and the supervisor"] = self.disk_read_only
        kill_supervisor: dict[str, Callable[[], float | None]] = {
            f"supervisor, {kind}": self.supervisor_in(kind) for kind in OPERATIONS
        }
        return {**kill_supervisor, **own}
