"""Placement groups in which something of others cannot be ended are given to nobody: they are removed."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.placement import GroupsSpec
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol import requests as r
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.answers import Response, decode_answer
from tests.engine.builders import Mesh
from tests.runtime.test_leases import TWO, Scene

CLASS = b"class"


async def submit_agent(scene, name):
    """The outcome of the submission of an agent of two bundles."""
    submission = msgspec.structs.replace(
        Mesh().submission(name, bundles=TWO, class_key=key_of(CLASS)), request_id=f"submit {name}"
    )
    request = r.SubmitTask(submission=submission, blobs={key_of(CLASS): CLASS})
    return decode_answer(await scene.ask(request), Response).outcome


@pytest.mark.parametrize("what", ["agent", "lease"])
def test_a_group_that_cannot_be_vacated_is_removed(tmp_path, what):
    async def story(scene):
        await scene.pool(GroupsSpec(max_dynamic=1))
        ray_id = (await scene.lease("first")).group.ray_id
        await scene.release("first")
        scene.uses(ray_id, "stays")
        scene.backend.undying.add("stays")
        if what == "agent":
            outcome = await submit_agent(scene, "second")
        else:
            outcome = (await scene.lease("second")).outcome
        assert isinstance(outcome, Refused), outcome
        assert outcome.reason is Reason.CLUSTER_OUT_OF_RESOURCES
        assert "others run in its placement group" in outcome.error
        assert ray_id not in scene.backend.by_id

    Scene(tmp_path).play(story)
