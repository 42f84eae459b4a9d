"""Every example, and the tutorial for RLHF, runs on two CPUs, and prints no traceback on its way to success.

tests/integration/test_examples.py runs them on eight.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.docs.documents import ROOT
from tests.integration.drivers import output_of

#: Those that need more than the package and its extras.
NEED_TORCH = {"train_under_a_lease"}
#: It starts no Ray, and tests/sim runs it.
WITHOUT_RAY = {"__init__", "what_if"}
EXAMPLES = sorted({p.stem for p in (ROOT / "examples").glob("*.py")} - WITHOUT_RAY)
#: Its groups need less than a CPU each, and two GPUs that need not exist.
PAGES = ["tutorial_rlhf.md"]
RUN = [name for name in EXAMPLES if name not in NEED_TORCH or find_spec("torch")]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def outputs():
    """What each example printed."""
    return output_of("tests.clusters.two_cpus", 570, *RUN, *PAGES)


@pytest.mark.parametrize("name", EXAMPLES + PAGES)
def test_an_example_runs(outputs, name):
    if name not in RUN + PAGES:
        pytest.skip("torch is not installed")
    output = outputs[name]
    assert output["error"] is None, output["error"]
    assert len(output["printed"].splitlines()) >= 5
    lines = (output["printed"] + output["logged"]).splitlines()
    # A thread of Ray Train fails where Ray's dashboard does not answer in time; the run goes on.
    own = [line for line in lines if "PlacementGroupCleaner" not in line]
    assert not any("Traceback" in line for line in own), output["logged"]
