"""Random worlds of gangs, leases and jobs keep the rules of docs/topology.md."""

from __future__ import annotations

import pytest

from tests.engine.topology_worlds import World


@pytest.mark.parametrize("seed", range(25))
def test_a_world_keeps_what_the_page_promises(seed):
    World(seed).run()
