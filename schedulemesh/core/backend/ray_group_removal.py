"""Removes placement groups without losing what Ray has prepared for them.

Ray prepares the bundles of a group on the nodes, and then commits them. Of a group that is removed in between
it never returns them: the nodes miss those resources until their Ray is started again. Seen with Ray 2.49
and 2.60; see https://github.com/ray-project/ray/issues/64693.
"""

from __future__ import annotations

import time

from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

#: The states of a group that Ray has still to place; PREPARED: bundles are prepared and not committed.
_UNPLACED = ("PENDING", "RESCHEDULING", "PREPARED")
#: What Ray says of one that it will place next, or is placing. All others wait for room or for nodes.
_IN_PROGRESS = ("QUEUED", "SCHEDULING_STARTED")
#: Seconds for which the removal of a group waits while Ray is placing it, which takes milliseconds; seconds
#: between two looks.
_SETTLES_S, _LOOK_S = 2.0, 0.005


def remove_settled(group: PlacementGroup) -> None:
    """Begin the removal of a group, after a wait of at most 2 s while Ray is placing it."""
    until = time.monotonic() + _SETTLES_S
    while _is_being_placed(group) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    remove_placement_group(group)


def _is_being_placed(group: PlacementGroup) -> bool:
    entry = placement_group_table(group)
    if not entry or entry["state"] not in _UNPLACED:
        return False
    return entry["state"] == "PREPARED" or entry["stats"]["scheduling_state"] in _IN_PROGRESS
