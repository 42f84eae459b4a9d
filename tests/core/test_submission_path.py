"""A submission crosses few files between the call, the journal, the agent and the answer."""

from __future__ import annotations

import re
from pathlib import Path

from tests.core.submission_path import ROOT, through_the_agent, through_the_scheduler, traced
from tests.core.test_request_service import client
from tests.runtime.composition import InThread

#: Files that give a submission to another file. More are a sign of indirection.
MOST = 22
#: Names the files that are crossed, in bold, and others.
PAGE = Path(__file__).parents[2] / "docs" / "submission_path.md"


def test_a_submission_crosses_few_files(tmp_path, monkeypatch):
    with traced() as trace:
        service = InThread(tmp_path / "j.sqlite")
        try:
            through_the_scheduler(trace, service, client(service))
        finally:
            service.close()
        through_the_agent(trace, monkeypatch.setattr)
    assert [file for file in trace.crossed if not Path(ROOT, file).exists()] == []
    for part in ("core/client", "runtime", "engine", "store", "core/agent"):
        assert any(file.startswith(part) for file in trace.crossed), part
    assert len(trace.crossed) <= MOST, sorted(trace.crossed)
    assert (
        set(re.findall(r"\*\*`(.*?\.py)`\*\*", PAGE.read_text(encoding="utf-8"))) == trace.crossed
    )
