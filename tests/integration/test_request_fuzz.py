"""A short run of the fuzz over every public call; the long one: ``make fuzz``."""

from __future__ import annotations

import os

import pytest

from schedulemesh.core import RayScheduler
from tests.integration.request_fuzz import run


@pytest.mark.timeout(200)
def test_no_value_breaks_the_scheduler_or_affects_other_callers(make_scheduler, namespace):
    seed = int(os.environ.get("FUZZ_SEED", "333410819"))
    print(f"seed {seed}")
    fuzz = run(make_scheduler(), RayScheduler("mesh", namespace=namespace), 1_000, seed)
    assert sum(many for what, many in fuzz.counts.items() if what.endswith("success")) > 50
