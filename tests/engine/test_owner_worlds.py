"""Random worlds of owners agree with the oracle of ``docs/owners.md``."""

from __future__ import annotations

import pytest

from tests.engine.owner_worlds import World


@pytest.mark.parametrize("seed", range(40))
def test_a_world_starts_whom_the_page_says(seed):
    World(seed).run()
