"""The folder of public traces, which are not part of the repository."""

import os
from pathlib import Path

import pytest

_GIVEN = os.environ.get("SCHEDULEMESH_TRACES", "")
TRACES = Path(_GIVEN)

needs_traces = pytest.mark.skipif(
    not _GIVEN, reason="SCHEDULEMESH_TRACES does not name the folder of public traces"
)
