"""Tokens: issue, change, revoke and list them. Only hashes of secrets are sent."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypedDict, Union

from msgspec import UNSET, UnsetType

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import ListRoute, delete, patch
from schedulemesh.api.rows import NameOf, OneOf
from schedulemesh.api.values import Checked, ClientName, Names, Priority, RequestId, TokenName
from schedulemesh.domain.names import parse_key
from schedulemesh.domain.tokens import (
    Role,
    TokenSpec,
    check_eviction_limits,
    check_limits,
    check_token,
    parse_lifetime,
)


class TokenInfo(TypedDict):
    """A token, without its secret; times are seconds since 1970."""

    name: str
    role: Annotated[str, OneOf.codes(Role)]
    pools: list[str]
    max_priority: float | None
    evict_pools: list[str] | None
    label_values: dict[str, list[str]]
    least_max_preemptions: int | None
    owner: Annotated[str, NameOf.OWNER]
    created_at: float
    created_by: str
    expires_at: float | None


def token_info(spec: TokenSpec) -> TokenInfo:
    """A token as listings show it."""
    return {
        "name": spec.name,
        "role": spec.role.value,
        "pools": list(spec.pools),
        "max_priority": spec.max_priority,
        "evict_pools": None if spec.evict_pools is None else list(spec.evict_pools),
        "label_values": {key: list(values) for key, values in spec.label_values.items()},
        "least_max_preemptions": spec.least_max_preemptions,
        "owner": spec.owner,
        "created_at": spec.created_at,
        "created_by": spec.created_by,
        "expires_at": spec.expires_at,
    }


class CreateToken(ChangingCall, tag="create_token", frozen=True, kw_only=True):
    """Issue a token; refused where one of its name is valid."""

    spec: TokenSpec
    #: Seconds after which it expires; None: it does not.
    lifetime_s: float | None = None
    client: ClientName
    request_id: RequestId

    def __post_init__(self) -> None:
        super().__post_init__()
        check_token(self.spec)
        parse_lifetime(self.lifetime_s)


class RotateToken(ChangingCall, tag="rotate_token", frozen=True, kw_only=True):
    """Give a token another secret; the former one is accepted no more."""

    name: TokenName
    secret_hash: Annotated[str, Checked(parse_key, "the hash of the token's secret")]
    #: Seconds after which it expires; None: it does not.
    lifetime_s: float | None = None
    client: ClientName
    request_id: RequestId

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_lifetime(self.lifetime_s)


class ChangeToken(ChangingCall, tag="change_token", frozen=True, kw_only=True):
    """Change the role, the limits or the expiry of a token, whose secret stays; what is not given stays."""

    routes: ClassVar = (
        patch(
            "/tokens/{name}",
            "Change the role, the limits or the expiry of a token, whose secret stays",
        ),
    )

    name: TokenName
    role: Role | UnsetType = UNSET
    pools: Names | UnsetType = UNSET
    max_priority: Priority | UnsetType | None = UNSET
    evict_pools: Names | UnsetType | None = UNSET
    label_values: dict[str, tuple[str, ...]] | UnsetType = UNSET
    least_max_preemptions: int | UnsetType | None = UNSET
    owner: str | UnsetType = UNSET
    #: In seconds since 1970; None: never.
    expires_at: float | UnsetType | None = UNSET
    client: ClientName

    def __post_init__(self) -> None:
        super().__post_init__()
        check_limits(
            () if self.pools is UNSET else self.pools,
            None if self.max_priority is UNSET else self.max_priority,
            "" if self.owner is UNSET else self.owner,
            None if self.expires_at is UNSET else self.expires_at,
        )
        check_eviction_limits(
            None if self.evict_pools is UNSET else self.evict_pools,
            {} if self.label_values is UNSET else self.label_values,
            None if self.least_max_preemptions is UNSET else self.least_max_preemptions,
        )


class RevokeToken(ChangingCall, tag="revoke_token", frozen=True, kw_only=True):
    """Accept a token no more."""

    routes: ClassVar = (delete("/tokens/{name}", "Revoke a token"),)

    name: TokenName
    client: ClientName


class _AboutCallers(Call, frozen=True, kw_only=True):
    """Base of queries about who calls the scheduler."""

    least_role: ClassVar[Role] = Role.OPERATOR


class ListTokens(_AboutCallers, tag="list_tokens", frozen=True, kw_only=True):
    """List the tokens, without anything of their secrets."""

    listings: ClassVar = (
        ListRoute(
            path="/tokens",
            summary="List the tokens, without their secrets",
            row=TokenInfo,
            key=("name",),
        ),
    )


class GetTokenHashes(_AboutCallers, tag="get_token_hashes", frozen=True, kw_only=True):
    """Get the valid tokens with the hashes of their secrets, for the process that checks them."""


#: What changes tokens.
AnyTokenChange = Union[CreateToken, RotateToken, ChangeToken, RevokeToken]
