"""The commands tokens list, create, rotate and revoke: who may call the scheduler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulemesh.cli.command import Output, Select, Target, View, command, note
from schedulemesh.cli.language import phrase
from schedulemesh.cli.output import emit, show
from schedulemesh.cli.priorities import MaxPriorityOption
from schedulemesh.cli.root import Subcommands
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.selection import check_pools
from schedulemesh.cli.texts import data, local_time, names, number, seconds

if TYPE_CHECKING:
    from schedulemesh.api.call import Call
    from schedulemesh.cli.gateway import Gateway

app = typer.Typer()
tokens = typer.Typer(
    cls=Subcommands, no_args_is_help=True, help="The tokens with which the scheduler is called."
)
app.add_typer(tokens, name="tokens")

Token = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.", show_default=False)]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="It expires after 12h, 30d, …; default: never."),
]

_TOKENS = (
    Column(heading="name", key="name"),
    Column(heading="role", key="role"),
    Column(heading="owner", key="owner"),
    Column(heading="pools", key="pools", show=names),
    Column(heading="max priority", key="max_priority", show=number, right=True),
    Column(heading="evicts in", key="evict_pools", show=names, wide=True),
    Column(heading="label values", key="label_values", show=data, wide=True),
    Column(heading="least max preemptions", key="least_max_preemptions", show=number, wide=True),
    Column(heading="expires", key="expires_at", show=local_time),
    Column(heading="created", key="created_at", show=local_time, wide=True),
    Column(heading="by", key="created_by", wide=True),
)


@command(tokens, "list")
def list_tokens(target: Target, view: View, select: Select) -> None:
    """Show the tokens, without their secrets."""
    from schedulemesh.api.tokens import ListTokens, TokenInfo
    from schedulemesh.protocol.answers import Listed

    def look(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListTokens(), Listed).rows
        return Listing(kind="tokens", rows=rows, columns=_TOKENS, row=TokenInfo)

    show(target, view, look, select)


@command(tokens)
def create(
    target: Target,
    output: Output,
    token: Token,
    role: Annotated[
        str, typer.Option(help="viewer, submitter, pool_operator or operator.")
    ] = "viewer",
    owner: Annotated[str, typer.Option(help="Of a submitter: the owner of its tasks.")] = "",
    pool: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a submitter or pool operator: a pool of its; default for a submitter: all."
        ),
    ] = None,
    max_priority: MaxPriorityOption = None,
    evict_pool: Annotated[
        list[str] | None,
        typer.Option(
            help="Of a submitter: a pool whose tasks its tasks may evict; default: as the policy says."
        ),
    ] = None,
    no_evictions: Annotated[
        bool, typer.Option("--no-evictions", help="Of a submitter: its tasks evict nobody.")
    ] = False,
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Of a submitter: a value that this label of its tasks may have; default: any.",
        ),
    ] = None,
    least_max_preemptions: Annotated[
        int | None,
        typer.Option(min=0, help="Of a submitter: its tasks ask for no lower max_preemptions."),
    ] = None,
    expires: Expires = None,
) -> None:
    """Issue a token, and print its secret, which is not shown again."""
    from schedulemesh.api.tokens import CreateToken
    from schedulemesh.api.values import client_name
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.domain.numbers import parse_priority
    from schedulemesh.domain.tokens import TokenSpec, parse_role
    from schedulemesh.errors import InvalidRequestError
    from schedulemesh.protocol.credentials import hash_of, new_secret

    if no_evictions and evict_pool:
        raise InvalidRequestError("--no-evictions and --evict-pool contradict each other; give one")
    secret = new_secret()
    with gateway_to(target) as gateway:
        spec = TokenSpec(
            name=token,
            role=parse_role(role),
            secret_hash=hash_of(secret),
            pools=tuple(pool or ()),
            max_priority=None if max_priority is None else parse_priority(max_priority),
            evict_pools=() if no_evictions else tuple(evict_pool) if evict_pool else None,
            label_values=_label_values(label or []),
            least_max_preemptions=least_max_preemptions,
            owner=owner,
        )
        request = CreateToken(
            spec=spec, lifetime_s=_lifetime(expires), client=client_name(), request_id=_request_id()
        )
        check_pools(gateway, (*spec.pools, *(spec.evict_pools or ())))
        _change(gateway, request)
    note(phrase("remark_secret", name=token))
    _print(output, {"name": token, "role": spec.role.value, "token": secret})


@command(tokens)
def rotate(
    target: Target,
    output: Output,
    token: Token,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="It expires after 12h, …; default: as before."
        ),
    ] = None,
) -> None:
    """Give a token another secret, and print it; the former one is accepted no more."""
    from schedulemesh.api.tokens import RotateToken
    from schedulemesh.api.values import client_name
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.credentials import hash_of, new_secret

    secret = new_secret()
    request = RotateToken(
        name=token,
        secret_hash=hash_of(secret),
        lifetime_s=_lifetime(expires),
        client=client_name(),
        request_id=_request_id(),
    )
    with gateway_to(target) as gateway:
        former = _hash_of_token(gateway, token)
        _change(gateway, request)
        _write_file(gateway, former, secret)
    note(phrase("remark_new_secret", name=token))
    _print(output, {"name": token, "token": secret})


@command(tokens)
def revoke(
    target: Target,
    output: Output,
    names: Annotated[list[str], typer.Argument(help="Names of tokens.", show_default=False)],
) -> int:
    """Accept tokens no more; the last operator's cannot be revoked."""
    from schedulemesh.api.tokens import RevokeToken
    from schedulemesh.api.values import client_name
    from schedulemesh.cli.changes import change_each
    from schedulemesh.protocol.answers import Response

    def request(name: str) -> RevokeToken:
        return RevokeToken(name=name, client=client_name())

    return change_each(target, output, names, request, Response, lambda _: "revoked")


def _change(gateway: Gateway, request: Call) -> None:
    from schedulemesh.protocol.answers import Response

    gateway.ask(request, Response)


def _print(output: Output, facts: dict[str, Any]) -> None:
    """Print what was issued: of a table the secret alone, so that scripts can read it."""
    emit(Record(facts=facts, name="token", text=facts["token"]), output)


def _label_values(options: list[str]) -> dict[str, tuple[str, ...]]:
    """The values of each key. Raises InvalidRequestError."""
    from schedulemesh.errors import InvalidRequestError

    label_values: dict[str, tuple[str, ...]] = {}
    for one in options:
        key, equals, value = one.partition("=")
        if not equals:
            raise InvalidRequestError(f"--label must be KEY=VALUE, not {one!r}")
        label_values[key] = (*label_values.get(key, ()), value)
    return label_values


def _lifetime(expires: str | None) -> float | None:
    return None if expires is None else seconds(expires, "--expires")


def _request_id() -> str:
    import uuid

    return uuid.uuid4().hex


def _hash_of_token(gateway: Gateway, name: str) -> str:
    """The hash of the secret of a token; empty: it is not valid."""
    from schedulemesh.api.tokens import GetTokenHashes
    from schedulemesh.protocol.answers import Details

    tokens = gateway.ask(GetTokenHashes(), Details).facts["tokens"]
    return next((token["secret_hash"] for token in tokens if token["name"] == name), "")


def _write_file(gateway: Gateway, former: str, secret: str) -> None:
    """Replace the token in the scheduler's file on this machine, if it is the one that was rotated."""
    import msgspec

    from schedulemesh.config.discovery import found, write
    from schedulemesh.config.http import home_folder
    from schedulemesh.protocol.credentials import hash_of

    folder = home_folder(os.environ)
    file = found(folder, gateway.namespace, gateway.name)
    if file is not None and hash_of(file.token) == former:
        path = write(folder, msgspec.structs.replace(file, token=secret))
        note(phrase("remark_secret_written", path=str(path)))
