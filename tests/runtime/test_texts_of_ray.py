"""Messages of Ray with characters that cannot be stored, such as the name of a file that is not UTF-8."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.runtime.backend import BackendError
from tests.runtime import life as lives
from tests.runtime.life import SOON_S


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


@pytest.mark.parametrize(("call", "pool"), [("agent_report", "p"), ("create_group", "g")])
def test_a_start_that_fails_with_such_a_message_has_failed(lived, monkeypatch, call, pool):
    async def story(life):
        async def fail(*_arguments):
            raise BackendError("cannot open 'caf\udce9.py'")

        monkeypatch.setattr(life.backend, call, fail)
        answer = life.submit("a", pool=pool, cpu=1)
        await asyncio.sleep(2 * SOON_S)  # virtual time
        assert life.running.reactor.state.agents == {}
        assert b"refused" in await asyncio.wait_for(answer, SOON_S)

    lived(story)
