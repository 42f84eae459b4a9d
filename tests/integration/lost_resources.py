"""A program: its own Ray loses resources of groups that are removed at once; prints what is found of that."""

from __future__ import annotations

import json
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from schedulemesh.cli import checks
from tests.integration.polling import until

CPUS, GROUPS = 16, 100


@ray.remote(num_cpus=1)
class Actor:
    """Has a CPU."""

    def ready(self) -> bool:
        """Whether it lives."""
        return True


def resources_row() -> dict[str, str]:
    """What the command doctor says now."""
    rows = ({key: str(value) for key, value in row.items()} for row in checks._cluster())
    return next(row for row in rows if row["check"] == "Ray's resources")


def main() -> None:
    """Look before and after; an actor and a group live all the time."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=80_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    checks._LOST_LOOK_S = 0.3
    told: dict[str, Any] = {}
    actor, group = Actor.remote(), placement_group([{"CPU": 1.0}])
    ray.get([actor.ready.remote(), group.ready()])
    until(lambda: ray.available_resources().get("CPU") == CPUS - 2, "Ray does not say so yet")
    told["before"] = resources_row()
    for _ in range(GROUPS):
        remove_placement_group(placement_group([{"CPU": 1.0}, {"CPU": 1.0}]))
    # At first some of it is given back.
    until(
        lambda: not missing() or f"has {lost()} of node" in resources_row()["found"], "it differs"
    )
    told["lost"], told["after"] = lost() if missing() else "", resources_row()
    print(json.dumps(told))
    ray.shutdown()


def missing() -> float:
    """The CPUs that are not free, beside those of the actor and the group."""
    return CPUS - 2 - float(ray.available_resources().get("CPU", 0.0))


def lost() -> str:
    """These in words."""
    return f"cpu {missing():g}"


if __name__ == "__main__":
    main()
