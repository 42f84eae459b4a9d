"""Random calls made from the OpenAPI document: none breaks the server, and each answer is as documented."""

from __future__ import annotations

import os

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from schedulemesh.server.openapi import document
from tests.runtime.composition import InThread
from tests.server.local import Api
from tests.server.work import filled

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@schemathesis.serializer("application/msgpack")
def packed(_, value):
    """A body in packed form."""
    return msgspec.msgpack.encode(packable(value))


def packable(value):
    """The value with whole numbers that the packed form has not as the nearest that it has."""
    if isinstance(value, dict):
        return {key: packable(element) for key, element in value.items()}
    if isinstance(value, list):
        return [packable(element) for element in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, -(2**63)), 2**64 - 1)
    return value


#: Calls for each operation of the API, of which there are many; `make explore` makes six times as many.
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "160")) // 20
#: Without the stream of events, whose answer does not end: test_streams.py has its parameters.
SCHEMA = schemathesis.openapi.from_dict(document("/api/v1")).exclude(path="/events/stream")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One API for all calls, whose scheduler has something to show and to change."""
    folder = tmp_path_factory.mktemp("fuzz")
    mesh = InThread(folder / "j.sqlite")
    api = Api(mesh, folder / "home")
    filled(mesh)
    yield api
    assert api.get("/status")["success"]
    api.close()
    mesh.close()


@pytest.fixture(scope="module")
def session():
    """What all calls have in common. To ask the environment for proxies takes as long as a call."""
    with requests.Session() as made:
        made.trust_env = False
        made.headers["Connection"] = "close"
        yield made


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_call_answers_as_documented(served, session, case):
    answer = case.call(
        base_url=f"{served.url}/api/v1",
        session=session,
        headers={"Authorization": f"Bearer {served.token}"},
    )
    case.validate_response(answer, checks=CHECKS)
