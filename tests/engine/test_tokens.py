"""Tokens are issued, rotated, revoked, and expire."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.api.tokens import token_info
from schedulemesh.domain.reasons import Change, Reason
from schedulemesh.domain.tokens import Role, TokenSpec, check_token
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.errors import InvalidRequestError
from tests.engine.builders import Mesh, pool

FIRST, SECOND = "a" * 64, "b" * 64


@pytest.fixture
def mesh():
    return Mesh()


def issue(mesh, name="t", role=Role.VIEWER, secret=FIRST, rotate=False, lifetime_s=None, **limits):
    spec = TokenSpec(name=name, role=role, secret_hash=secret, **limits)
    stimulus = s.TokenRequested(spec=spec, rotate=rotate, lifetime_s=lifetime_s, client="c")
    return mesh.handle(stimulus).outcome


def revoke(mesh, name):
    return mesh.handle(s.TokenRevocationRequested(name=name, client="c")).outcome


def change(mesh, name, **fields):
    return mesh.handle(s.TokenChangeRequested(name=name, client="c", **fields)).outcome


def test_limits_change_and_the_secret_stays(mesh):
    issue(mesh, role=Role.SUBMITTER, owner="ada", pools=("p",), max_priority=3.0)
    before = mesh.state.tokens["t"]
    assert change(mesh, "t", pools=("q",)).change is Change.CHANGED
    assert change(mesh, "t", pools=("q",)).change is Change.UNCHANGED
    assert change(mesh, "t", max_priority=None, expires_at=9.0).change is Change.CHANGED
    after = mesh.state.tokens["t"]
    assert after == msgspec.structs.replace(before, pools=("q",), max_priority=None, expires_at=9.0)
    assert mesh.state.tokens.by_hash == {FIRST: after}
    assert change(mesh, "none", owner="x").reason is Reason.TOKEN_NOT_FOUND


def test_limits_end_with_the_role_of_a_submitter(mesh):
    issue(mesh, role=Role.SUBMITTER, owner="ada", pools=("p",), max_priority=3.0)
    refused = change(mesh, "t", role=Role.VIEWER, owner="ada")
    assert refused.reason is Reason.TOKEN_CONTRADICTION
    assert change(mesh, "t", owner="").reason is Reason.TOKEN_CONTRADICTION
    change(mesh, "t", role=Role.OPERATOR)
    token = mesh.state.tokens["t"]
    assert (token.role, token.pools, token.max_priority, token.owner) == (
        Role.OPERATOR,
        (),
        None,
        "",
    )


def test_the_last_operator_keeps_its_role_and_does_not_expire(mesh):
    issue(mesh, name="only", role=Role.OPERATOR)
    for fields in (
        {"role": Role.VIEWER},
        {"role": Role.SUBMITTER, "owner": "x"},
        {"expires_at": 9e9},
    ):
        assert change(mesh, "only", **fields).reason is Reason.LAST_OPERATOR
    issue(mesh, name="other", role=Role.OPERATOR, secret=SECOND)
    assert change(mesh, "only", role=Role.VIEWER).change is Change.CHANGED
    assert change(mesh, "other", expires_at=9e9).reason is Reason.LAST_OPERATOR


def test_a_token_is_issued_once(mesh):
    assert issue(mesh).change is Change.CREATED
    refused = issue(mesh, secret=SECOND)
    assert refused.reason is Reason.TOKEN_EXISTS
    assert mesh.state.tokens["t"].secret_hash == FIRST
    assert mesh.state.tokens["t"].created_by == "c"


def test_a_repeated_request_for_a_token_gets_its_first_answer(mesh):
    issued = issue(mesh, lifetime_s=60.0)
    token = mesh.state.tokens["t"]
    assert issue(mesh, lifetime_s=60.0) == issued
    assert mesh.state.tokens["t"] == token
    assert issue(mesh, role=Role.OPERATOR, lifetime_s=60.0).reason is Reason.TOKEN_EXISTS
    assert issue(mesh, lifetime_s=61.0).reason is Reason.TOKEN_EXISTS
    assert issue(mesh).reason is Reason.TOKEN_EXISTS


def test_a_rotation_replaces_the_secret_and_keeps_role_and_limits(mesh):
    issue(mesh, role=Role.SUBMITTER, owner="ada", pools=("p",), max_priority=3.0)
    assert issue(mesh, secret=SECOND, rotate=True).change is Change.CHANGED
    token = mesh.state.tokens["t"]
    assert (token.secret_hash, token.role, token.owner) == (SECOND, Role.SUBMITTER, "ada")
    assert issue(mesh, name="none", rotate=True).reason is Reason.TOKEN_NOT_FOUND


def test_the_name_of_an_expired_token_is_free(mesh):
    issue(mesh, lifetime_s=10.0)
    token = mesh.state.tokens["t"]
    assert token.valid(token.created_at + 9.9)
    assert not token.valid(token.created_at + 10.0)
    mesh.tick(11.0)
    assert issue(mesh, secret=SECOND).change is Change.CREATED


def test_the_last_operator_cannot_be_revoked(mesh):
    issue(mesh, name="local", role=Role.OPERATOR)
    issue(mesh, name="v", secret=SECOND)
    assert revoke(mesh, "local").reason is Reason.LAST_OPERATOR
    issue(mesh, name="other", role=Role.OPERATOR, secret="c" * 64)
    revoke(mesh, "local")
    assert list(mesh.state.tokens) == ["v", "other"]
    assert revoke(mesh, "local").reason is Reason.TOKEN_NOT_FOUND


def test_an_operator_whose_token_expires_does_not_count(mesh):
    issue(mesh, name="short", role=Role.OPERATOR, lifetime_s=10.0)
    issue(mesh, name="local", role=Role.OPERATOR, secret=SECOND)
    assert revoke(mesh, "local").reason is Reason.LAST_OPERATOR
    rotated = issue(mesh, name="local", rotate=True, lifetime_s=1.0, secret="c" * 64)
    assert rotated.reason is Reason.LAST_OPERATOR
    assert issue(mesh, name="local", rotate=True, secret="c" * 64).change is Change.CHANGED
    assert mesh.state.tokens["local"].expires_at is None
    revoke(mesh, "short")
    assert list(mesh.state.tokens) == ["local"]


def test_a_rotated_token_is_valid_for_as_long_again_unless_a_lifetime_is_given(mesh):
    issue(mesh, lifetime_s=10.0)
    mesh.tick(6.0)
    issue(mesh, rotate=True, secret=SECOND)
    token = mesh.state.tokens["t"]
    assert token.expires_at == token.created_at + 10.0 == mesh.now + 10.0
    issue(mesh, rotate=True, secret="c" * 64, lifetime_s=30.0)
    assert mesh.state.tokens["t"].expires_at == mesh.now + 30.0


@pytest.mark.parametrize(
    "fields",
    [
        {"role": Role.SUBMITTER},
        {"role": Role.VIEWER, "owner": "ada"},
        {"role": Role.OPERATOR, "pools": ("p",)},
        {"role": Role.VIEWER, "secret_hash": "secret"},
    ],
)
def test_a_token_that_contradicts_itself_is_refused(fields):
    with pytest.raises(InvalidRequestError):
        check_token(TokenSpec(**{"name": "t", "secret_hash": FIRST, **fields}))


def test_what_is_shown_has_nothing_of_the_secret(mesh):
    issue(mesh)
    assert FIRST not in str(token_info(mesh.state.tokens["t"]))


def test_two_tokens_have_no_secret_in_common(mesh):
    issue(mesh, name="one")
    assert issue(mesh, name="two").reason is Reason.TOKEN_EXISTS
    issue(mesh, name="two", secret=SECOND)
    assert issue(mesh, name="two", rotate=True).reason is Reason.TOKEN_EXISTS


def test_authentication_is_enabled_once_with_its_first_token(mesh):
    first = TokenSpec(name="first", role=Role.OPERATOR, secret_hash=FIRST)
    request = s.AuthenticationRequested(first=first)
    assert mesh.handle(request).outcome.change is Change.CHANGED
    assert mesh.state.tokens.required
    other = s.AuthenticationRequested(
        first=TokenSpec(name="second", role=Role.OPERATOR, secret_hash=SECOND)
    )
    assert mesh.handle(other).outcome.change is Change.UNCHANGED
    assert list(mesh.state.tokens) == ["first"]
    assert mesh.refolded().tokens.required
    assert mesh.rewritten().tokens.by_hash == mesh.state.tokens.by_hash


def test_a_pool_that_there_is_not_yet_is_warned_about():
    mesh = Mesh(pool("train", cpu=1))
    warnings = issue(mesh, role=Role.SUBMITTER, owner="ada", pools=("trian", "train")).warnings
    assert [warning.split(";")[0] for warning in warnings] == [
        "there is no pool 'trian' as yet (did you mean 'train'?)"
    ]
    assert change(mesh, "t", evict_pools=("nope",), pools=("train",)).warnings
    assert not change(mesh, "t", evict_pools=("train",)).warnings
