"""Whatever the backend does, the state becomes what exists; see story.py.

Hypothesis chooses the stories, HYPOTHESIS_EXAMPLES says how many; stories.py tells many more.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.stories import tell


@settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 80), on_disk=st.booleans())
def test_whatever_the_backend_does_the_state_becomes_what_exists(seed, count, on_disk):
    tell(seed, count, on_disk=on_disk)
