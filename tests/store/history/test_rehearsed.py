"""The history of a journal in PostgreSQL is rehearsed like that of one in a file."""

from __future__ import annotations

import pytest

from schedulemesh.errors import InvalidRequestError, JournalError
from schedulemesh.sim import Timing
from schedulemesh.sim.rehearsal import Changes, open_history, rehearse
from tests.sim.recorded_load import policy_of, random_jobs, recorded_world, written


@pytest.fixture
def world():
    made = recorded_world(random_jobs(2, 60, "ab"), policy_of(), Timing(start_s=5.0, end_s=2.0))
    made.run()
    return made


def test_a_history_in_a_database_is_rehearsed_like_one_in_a_file(world, database, server, tmp_path):
    address = database("mesh")
    written(world, address)
    written(world, tmp_path / "mesh.sqlite")
    there = open_history(server.url, name="mesh", namespace=address.namespace)
    here = open_history(str(tmp_path / "mesh.sqlite"))
    assert there.events == here.events
    for changes in (Changes(), Changes(nodes=1)):
        found = rehearse(there, changes)
        assert found == rehearse(here, changes)
        assert found.check.differences == ()
        assert found.check.same > 60


def test_a_scheduler_that_the_database_does_not_have_is_refused(world, database, server):
    written(world, database("mesh"))
    with pytest.raises(InvalidRequestError, match="there is no scheduler nowhere/mesh"):
        open_history(server.url, name="mesh", namespace="nowhere")


def test_a_database_that_does_not_answer_is_named_in_the_error(tmp_path):
    pytest.importorskip("psycopg")
    url = f"postgresql+psycopg://ann:secret@/mesh?host={tmp_path}"
    with pytest.raises(JournalError, match="Check the URL") as caught:
        open_history(url, name="mesh")
    assert "secret" not in str(caught.value)
