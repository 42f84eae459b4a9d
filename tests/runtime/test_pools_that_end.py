"""Pools that are deleted or renamed while somebody is still told of their definition."""

from __future__ import annotations

import asyncio
import functools

import pytest

from schedulemesh.api.pools import CreatePool, DeletePool, RenamePool
from schedulemesh.domain.placement import GroupShape, GroupsSpec
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Done
from schedulemesh.protocol.answers import PoolResponse, decode_answer
from tests.runtime import life as lives

ONE = parse_resources({"cpu": 1})
GROUPS = GroupsSpec(reserved=(GroupShape(bundles=(ONE,)),), max_dynamic=1)
ENDS = (
    DeletePool(name="new", drain=True, client="me", request_id="end"),
    RenamePool(name="new", new_name="other", request_id="end"),
)


@pytest.fixture
def lived(tmp_path):
    return functools.partial(lives.run, tmp_path / "mesh.sqlite")


def definition(groups=None):
    spec = PoolSpec(name="new", resources=ONE, groups=groups)
    return CreatePool(spec=spec, request_id="create")


@pytest.mark.parametrize("end", ENDS)
def test_a_definition_that_is_repeated_afterwards_is_answered_as_before(lived, end):
    async def story(life):
        first = decode_answer(await life.ask(definition()), PoolResponse)
        await life.ask(end)
        assert decode_answer(await life.ask(definition()), PoolResponse) == first

    lived(story)


@pytest.mark.parametrize("end", ENDS)
def test_a_definition_whose_groups_are_being_created_is_answered(lived, end):
    async def story(life):
        life.backend.full = {"n"}
        creating = life.ask(definition(GROUPS))
        await asyncio.sleep(1.0)  # virtual time
        await life.ask(end)
        answer = decode_answer(await asyncio.wait_for(creating, 60.0), PoolResponse)
        assert isinstance(answer.outcome, Done)

    lived(story)
