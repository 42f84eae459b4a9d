"""Ending what a test made in Ray and did not end, because it failed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from schedulemesh.core.client.scheduler import RayScheduler
from tests.integration.polling import until


@contextlib.contextmanager
def ended_after_an_error(names: Mapping[str, object]) -> Iterator[None]:
    """If the body fails, nothing that it made stays in Ray; the error is raised again.

    The schedulers among the values of `names` are shut down, which removes their journals too. Named actors
    and placement groups that were there before the body are left alone.
    """
    actors, groups = named_actors(), living_groups()
    try:
        yield
    except BaseException:
        try:
            shut_down([each for each in names.values() if isinstance(each, RayScheduler)])
        finally:
            end_all_but(actors, groups)
        raise


def shut_down(schedulers: list[RayScheduler]) -> None:
    """Shut each down, even if another one fails."""
    with contextlib.ExitStack() as stack:
        for scheduler in schedulers:
            stack.callback(scheduler.shutdown)


def end_all_but(actors: set[tuple[str, str]], groups: set[str]) -> None:
    """Kill the other named actors, remove the other placement groups, and wait until they are gone."""
    # A supervisor's name comes before those of its agents, so it does not see them end.
    for namespace, name in sorted(named_actors() - actors):
        with contextlib.suppress(ValueError):  # it ended with another one
            ray.kill(ray.get_actor(name, namespace=namespace))
    for group in living_groups() - groups:
        remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group)))
    until(
        lambda: named_actors() <= actors and living_groups() <= groups,
        lambda: f"left in Ray: {named_actors() - actors}, {living_groups() - groups}",
    )


def named_actors() -> set[tuple[str, str]]:
    """Namespace and name of every living actor that has a name."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return {(each["namespace"], each["name"]) for each in listed}


def living_groups() -> set[str]:
    """The ids of the placement groups that are not removed."""
    table = ray.util.placement_group_table()
    return {group for group, entry in table.items() if entry["state"] != "REMOVED"}
