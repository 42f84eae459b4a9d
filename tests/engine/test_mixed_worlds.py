"""Random worlds of owners, dependencies and arrays keep what their pages promise."""

from __future__ import annotations

import pytest

from tests.engine.mixed_worlds import World


@pytest.mark.parametrize("seed", [*range(20), 20062])
def test_a_world_keeps_what_the_pages_promise(seed):
    World(seed).run()
