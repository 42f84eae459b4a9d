"""The specification of an agent: what a caller may request."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.domain.agent import AgentSpec, check_agent
from schedulemesh.domain.payloads import SINGLE_PROCESS, JobPayload, PackedModule, module_archive
from schedulemesh.domain.resources import Resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.runtime.agents.start import own_need

ONE = Resources(cpu=10_000)
KEY = "0" * 64


def job(**fields):
    """A job in pool p."""
    own = {"payload": JobPayload(grace_s=30.0), **fields}
    return AgentSpec(name="a", pool_name="p", resources=ONE, class_key=KEY, **own)


def test_a_job_is_accepted_and_its_process_takes_nothing():
    check_agent(job())
    assert own_need(job()) == Resources()
    assert own_need(job(bundles=(ONE, ONE))) == Resources()
    assert own_need(job(payload=SINGLE_PROCESS)) == ONE


def test_a_single_process_is_left_out_where_it_is_stored():
    spec = job(payload=SINGLE_PROCESS)
    stored = msgspec.json.encode(spec)
    assert b"payload" not in stored
    assert msgspec.json.decode(stored, type=AgentSpec) == spec


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"payload": JobPayload(grace_s=-1.0)}, "grace_s"),
        ({"payload": JobPayload(grace_s=float("nan"))}, "grace_s"),
        ({"options": '{"max_restarts": 1}'}, "max_restarts"),
    ],
)
def test_a_job_that_cannot_be_is_refused(fields, said):
    with pytest.raises(InvalidRequestError, match=said):
        check_agent(job(**fields))


def sent(uri, key=KEY):
    """A job with this module."""
    return job(payload=JobPayload(grace_s=30.0, modules=(PackedModule(uri=uri, key=key),)))


def test_modules_have_the_address_of_their_contents_or_the_name_of_a_wheel():
    check_agent(sent(module_archive(KEY)))
    check_agent(sent("gcs://pkg-1.0+local-py3-none-any.whl"))


@pytest.mark.parametrize(
    "uri",
    [
        module_archive("1" * 64),
        "gcs://_ray_pkg_0123456789abcdef.zip",
        "gcs://a/b.whl",
        "https://a/b.whl",
        "gcs://",
    ],
)
def test_a_module_cannot_take_the_place_of_another_package(uri):
    with pytest.raises(InvalidRequestError, match="a module is to be found at"):
        check_agent(sent(uri))
