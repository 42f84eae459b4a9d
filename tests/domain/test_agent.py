"""The specification of an agent: what a caller may request."""

from __future__ import annotations

import pytest

from schedulemesh.domain.agent import AgentSpec, GangSpec, JobSpec, check_agent
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.runtime.agent_start import own_need

ONE = Resources(cpu=10_000)
KEY = "0" * 64


def job(**fields):
    """A job in pool p."""
    own = {"job": JobSpec(grace_s=30.0), **fields}
    return AgentSpec(name="a", pool_name="p", resources=ONE, class_key=KEY, **own)


def test_a_job_is_accepted_and_its_process_takes_nothing():
    check_agent(job())
    assert own_need(job()) == Resources()
    assert own_need(job(bundles=(ONE, ONE))) == Resources()
    assert own_need(job(job=None)) == ONE


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"job": JobSpec(grace_s=-1.0)}, "grace_s"),
        ({"job": JobSpec(grace_s=float("nan"))}, "grace_s"),
        ({"options": '{"max_restarts": 1}'}, "max_restarts"),
        ({"gang": GangSpec(), "bundles": (ONE,)}, "a gang or a job"),
    ],
)
def test_a_job_that_cannot_be_is_refused(fields, said):
    with pytest.raises(InvalidRequestError, match=said):
        check_agent(job(**fields))
