"""The kinds of kills by their names."""

from __future__ import annotations

from collections.abc import Callable

from tests.drills.of_agents import OfAgents
from tests.drills.of_beginnings import OfBeginnings
from tests.drills.of_disk import OfDisk
from tests.drills.of_drivers import OfDrivers
from tests.drills.of_supervisor import OPERATIONS, OfSupervisor


class Kills(OfSupervisor, OfAgents, OfDrivers, OfDisk, OfBeginnings):
    """All of them."""

    def kinds(self) -> dict[str, Callable[[], float | None]]:
        """Every kind by its name."""
        own = {
            "supervisor, idle": self.supervisor_idle,
            "supervisor, stopped": self.supervisor_stopped,
            "supervisor, in mid-recovery": self.supervisor_twice,
            "supervisor and an agent at once": self.supervisor_and_agent,
            "agent, at work": self.agent_at_work,
            "agent, in its constructor": self.agent_in_constructor,
            "agent, in mid-eviction": self.agent_in_eviction,
            "agent, stopped": self.agent_stopped,
            "worker of a preserver": self.preserver,
            "driver, detached": self.driver_detached,
            "driver, not detached": self.driver_tied,
            "journal's disk full": self.disk_full,
            "journal's disk full, and the supervisor": self.disk_full_and_killed,
            "garbage at the journal's end": self.garbage,
            "supervisor, while it begins for the first time": self.first_beginning,
            "supervisor, and a backup put in its journal's place": self.backup_put_back,
        }
        if self.disk is not None:
            own["journal's disk read-only, and the supervisor"] = self.disk_read_only
        of_supervisor: dict[str, Callable[[], float | None]] = {
            f"supervisor, {kind}": self.supervisor_in(kind) for kind in OPERATIONS
        }
        return {**of_supervisor, **own}
