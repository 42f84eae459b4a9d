"""The tokens that the supervisor accepts, as this process knows them.

So a request with a token that is not accepted costs the supervisor nothing. The supervisor itself checks each
request again, with the tokens of that moment.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping

import msgspec

from schedulemesh.api.tokens import CreateToken, GetTokenHashes, RotateToken
from schedulemesh.domain.tokens import LOCAL, Role, TokenSpec
from schedulemesh.errors import SchedulerUnavailableError
from schedulemesh.protocol.answers import Details, Response
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.credentials import hash_of, new_secret
from schedulemesh.server.gateway import SupervisorClient

logger = logging.getLogger(__name__)

#: Seconds after which the tokens are read again when a request comes, and the shortest time between two
#: such reads where an unknown token is given.
_FRESH_S, _PAUSE_S = 2.0, 0.5
#: Seconds that the supervisor may take to tell the tokens; and while none are known that could stay.
_ANSWER_S, _FIRST_ANSWER_S = 2.0, 15.0
#: Seconds between two attempts to reach the supervisor.
_RETRY_S = 0.2


class TokenTable:
    """Tells who has a token."""

    def __init__(self, gateway: SupervisorClient) -> None:
        self._gateway = gateway
        #: Requests without a token that is accepted, since this process began.
        self.failures = 0
        #: None: they have never been read.
        self._by_hash: Mapping[str, TokenSpec] | None = None
        self._read_at = float("-inf")
        #: The scheduler's time when the tokens were read, and this process's.
        self._reported_time = (time.time(), time.monotonic())
        self._reading: asyncio.Task[None] | None = None

    async def caller(self, token: str, address: str) -> TokenCaller | None:
        """Who has this token and sends a request from this address; None: nobody.

        Raises SchedulerUnavailableError while the tokens have never been read.
        """
        return await self.holder(hash_of(token), address)

    async def holder(self, hashed: str, address: str) -> TokenCaller | None:
        """As ``caller``, from the hash of the token."""
        by_hash = await self._tokens(lambda by_hash: hashed in by_hash)
        return self._valid(by_hash.get(hashed), address)

    async def named(self, name: str, address: str) -> TokenCaller | None:
        """As ``caller``, from the name of the token."""

        def token_in(by_hash: Mapping[str, TokenSpec]) -> TokenSpec | None:
            return next((token for token in by_hash.values() if token.name == name), None)

        by_hash = await self._tokens(lambda by_hash: token_in(by_hash) is not None)
        return self._valid(token_in(by_hash), address)

    async def _tokens(
        self, has_token: Callable[[Mapping[str, TokenSpec]], bool]
    ) -> Mapping[str, TokenSpec]:
        """The tokens by their hashes, read again where they may have changed: sooner where the one that is
        looked for is not among them. Raises as ``caller``.
        """
        age_s = time.monotonic() - self._read_at
        if age_s > (_FRESH_S if has_token(self._by_hash or {}) else _PAUSE_S):
            await self.read()
        if self._by_hash is None:
            raise SchedulerUnavailableError(
                "the scheduler cannot be reached, so it is not known which tokens it accepts"
            )
        return self._by_hash

    def _valid(self, token_spec: TokenSpec | None, address: str) -> TokenCaller | None:
        if token_spec is None or not token_spec.valid(self._now()):
            return None
        return TokenCaller(token=token_spec, address=address)

    def _now(self) -> float:
        """The scheduler's time, by which tokens expire."""
        reported_time, at = self._reported_time
        return float(reported_time) + time.monotonic() - at

    def outdated(self) -> None:
        """The tokens have changed."""
        self._read_at = float("-inf")

    def refused(self) -> None:
        """A request had no token that is accepted."""
        self.failures += 1

    async def read(self) -> None:
        """Read the tokens again; while the supervisor does not answer, those that are known stay."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        limit_s = _FIRST_ANSWER_S if self._by_hash is None else _ANSWER_S
        try:
            answer = await asyncio.wait_for(self._gateway.ask(GetTokenHashes()), limit_s)
        except (SchedulerUnavailableError, asyncio.TimeoutError, TimeoutError) as error:
            logger.info("the tokens are not read again now: %s", error)
        else:
            if isinstance(answer, Details):
                tokens = msgspec.convert(answer.facts["tokens"], list[TokenSpec])
                self._by_hash = {token.secret_hash: token for token in tokens}
                self._reported_time = (answer.facts["time"], time.monotonic())
        self._read_at = time.monotonic()

    async def local_secret(self, earlier: str | None) -> str:
        """The secret of this machine's token: the earlier one while it is accepted, else a new one.

        Returns when the supervisor has recorded it.
        """
        while True:
            try:
                return await self._local_secret(earlier)
            except SchedulerUnavailableError as error:
                logger.info("the token of this machine is not recorded yet: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def _local_secret(self, earlier: str | None) -> str:
        answer = await self._gateway.ask(GetTokenHashes())
        if not isinstance(answer, Details):
            raise SchedulerUnavailableError(f"the supervisor answered {answer!r}")
        tokens = msgspec.convert(answer.facts["tokens"], list[TokenSpec])
        token_by_name = {token.name: token for token in tokens}
        operators = {token.secret_hash for token in tokens if token.role is Role.OPERATOR}
        if earlier is not None and hash_of(earlier) in operators:
            return earlier
        secret = new_secret()
        request: CreateToken | RotateToken
        client, request_id = "http server", secrets.token_hex(16)
        if LOCAL in token_by_name:
            request = RotateToken(
                name=LOCAL, secret_hash=hash_of(secret), client=client, request_id=request_id
            )
        else:
            spec = TokenSpec(name=LOCAL, role=Role.OPERATOR, secret_hash=hash_of(secret))
            request = CreateToken(spec=spec, client=client, request_id=request_id)
        done = await self._gateway.ask(request)
        if not isinstance(done, Response):
            raise SchedulerUnavailableError(f"the supervisor answered {done!r}")
        self.outdated()
        return secret
