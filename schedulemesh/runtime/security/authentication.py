"""Decides who makes a call over Ray: the holder of a token, or one of the scheduler's own processes.

As long as nobody has enabled authentication, every call is accepted. Once it is enabled, which the journal
records, clients need a token, and the processes of agents and of the HTTP API the key that they got from the
supervisor when they were started.
"""

from __future__ import annotations

import logging
import time

from schedulemesh.config.settings import SchedulerSettings
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.messages.stimuli import AuthenticationRequested
from schedulemesh.errors import NotAllowedError
from schedulemesh.protocol.agents import MessageError, MetricsReport, unpack
from schedulemesh.protocol.callers import RequestSource, TokenCaller
from schedulemesh.protocol.credentials import (
    HTTP,
    SOCKET,
    Credential,
    hash_of,
    new_process_secret,
    process_key,
    same,
    user_at_host,
)
from schedulemesh.runtime.reactor import Reactor

logger = logging.getLogger(__name__)

#: The name of the operator's token with which a scheduler begins.
FIRST_OPERATOR = "first-operator"

#: How the process of the HTTP API is recorded.
_HTTP_SERVER = "HTTP server"
HTTP_SOURCE = RequestSource(address=_HTTP_SERVER, user=_HTTP_SERVER, user_verified=True)

#: Seconds between two lines in the log about calls that were not accepted.
_LOG_EVERY_S = 10.0

_NONE_GIVEN = (
    "this scheduler accepts calls with a token only, and none was given: pass token=..., set "
    "SCHEDULEMESH_TOKEN, or run this as the user and on the machine that started the scheduler. An operator "
    "issues tokens with `schedulemesh tokens create`"
)
_NOT_ACCEPTED = (
    "the token is unknown, expired or revoked; ask an operator for another one (`schedulemesh tokens list` "
    "shows those that are valid)"
)


class Authentication:
    """What the supervisor knows of its callers, and how many calls it has not accepted."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings.auth
        self._secret = settings.auth.process_key or new_process_secret()
        #: The key of the process that serves the HTTP API.
        self.http_key = process_key(self._secret, HTTP)
        #: Which scheduler answers at the socket.
        self.socket_id = process_key(self._secret, SOCKET).hex()
        #: Calls that were not accepted since the process that checks them began.
        self.failures = {"ray": 0, "http": 0}
        self._logged_at, self._logged = float("-inf"), 0

    async def begin(self, reactor: Reactor) -> None:
        """Enable authentication, if the settings say so and it is not enabled."""
        if not self._settings.required or reactor.state.tokens.required:
            return
        first = TokenSpec(
            name=FIRST_OPERATOR,
            role=Role.OPERATOR,
            secret_hash=self._settings.first_token_hash,
            created_by="the start of the scheduler",
        )
        await reactor.step(AuthenticationRequested(first=first))

    def caller(self, reactor: Reactor, credential: bytes) -> TokenCaller | Refused | None:
        """Whose token comes with a call; None: it needs none, or the scheduler's own process makes it."""
        tokens = reactor.state.tokens
        if not tokens.required or self.is_http(credential):
            return None
        client_credential = parsed(credential)
        if not client_credential.token:
            return self._refused(_NONE_GIVEN, client_credential)
        hashed = hash_of(client_credential.token)
        # What a lookup by the hash takes long says nothing of the secret.
        token = tokens.by_hash.get(hashed)
        if token is None or not token.valid(reactor.now()):
            return self._refused(_NOT_ACCEPTED, client_credential)
        return TokenCaller(token=token, address=client_credential.address)

    def operator(self, reactor: Reactor | None, credential: bytes) -> str:
        """Who makes this call, for the log; empty where no token is needed. Raises NotAllowedError unless it
        is an operator.

        ``reactor`` None: the journal cannot be read, so that only the first token is known.
        """
        address = self.address(credential) or "an unknown process"
        if reactor is None:
            first = self._settings.first_token_hash
            if self._settings.required and hash_of(parsed(credential).token) != first:
                raise NotAllowedError(
                    "the journal cannot be read, so that of all tokens only the one with which the scheduler "
                    "was started is known, and this call has another one"
                )
            return address if self._settings.required else ""
        caller = self.caller(reactor, credential)
        if isinstance(caller, Refused):
            raise NotAllowedError(caller.error)
        if caller is not None and caller.role is not Role.OPERATOR:
            raise NotAllowedError(
                f"token {caller.token.name!r} has the role {caller.role.value}; this needs the role operator"
            )
        return "" if caller is None else f"token {caller.token.name!r}, {address}"

    def source(self, credential: bytes) -> RequestSource:
        """Where a call comes from, for the record: as the client says, but for the HTTP API itself."""
        if self.is_http(credential):
            return HTTP_SOURCE
        client_credential = parsed(credential)
        return RequestSource(
            address=client_credential.address, user=user_at_host(client_credential.user)
        )

    def address(self, credential: bytes) -> str:
        """Where a call comes from, as it is recorded."""
        return self.source(credential).address

    def is_http(self, key: object) -> bool:
        """Whether this is the key of the process that serves the HTTP API."""
        return same(key, self.http_key)

    def check_http(self, reactor: Reactor, key: object) -> None:
        """Raise NotAllowedError unless the process of the HTTP API makes a call, where that matters."""
        if reactor.state.tokens.required and not self.is_http(key):
            raise NotAllowedError(
                self._refused("only the process of the HTTP API makes this call", None).error
            )

    def agent_key(self, agent_name: str, incarnation: int) -> bytes:
        """The key of an agent's process."""
        return process_key(self._secret, "agent", agent_name, incarnation)

    def check_agent(self, reactor: Reactor, agent_name: str, incarnation: int, key: object) -> None:
        """Raise NotAllowedError unless this agent's own process makes a call, where that matters."""
        if not reactor.state.tokens.required:
            return
        if not same(key, self.agent_key(agent_name, incarnation)):
            raise NotAllowedError(self._refused("this is not the key of the agent", None).error)

    def check_metrics(self, reactor: Reactor, message: bytes, key: bytes) -> None:
        """Raise NotAllowedError unless who reports metrics may: the agent itself, or for a process that
        ScheduleMesh did not start the holder of a token that is not only for looking.
        """
        if not reactor.state.tokens.required:
            return
        try:
            report = unpack(message, MetricsReport)
        except MessageError:
            # It is no report, and is not taken as one.
            return
        if report.incarnation is not None:
            self.check_agent(reactor, report.agent_name, report.incarnation, key)
            return
        caller = self.caller(reactor, key)
        if isinstance(caller, Refused):
            raise NotAllowedError(caller.error)
        if caller is not None and not self._may_report(reactor, caller, report.agent_name):
            raise NotAllowedError(
                f"token {caller.token.name!r} reports no metrics of agent {report.agent_name!r}"
            )

    def _may_report(self, reactor: Reactor, caller: TokenCaller, agent_name: str) -> bool:
        if caller.role is not Role.SUBMITTER:
            return caller.role is Role.OPERATOR or self._leads(reactor, caller, agent_name)
        running = reactor.state.running
        tasks = [running.by_id[task_id] for task_id in running.on_agent(agent_name)]
        # An agent without a task, and one that the scheduler does not know, has no owner.
        return bool(tasks) and all(task.spec.owner == caller.token.owner for task in tasks)

    def _leads(self, reactor: Reactor, caller: TokenCaller, agent_name: str) -> bool:
        """Whether a caller is the operator of an agent's pool."""
        agent = reactor.state.agents.get(agent_name)
        if agent is None or caller.role is not Role.POOL_OPERATOR:
            return False
        return agent.spec.pool_name in caller.token.pools

    def _refused(self, error: str, credential: Credential | None) -> Refused:
        """Count a call that is not accepted; the log says so now and then."""
        self.failures["ray"] += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_S:
            address = (
                ""
                if credential is None
                else f", the last from {credential.address or 'an unknown process'}"
            )
            failures = self.failures["ray"]
            count, self._logged = failures - self._logged, failures
            self._logged_at = now
            logger.warning("%d calls without an accepted token%s: %s", count, address, error)
        return Refused(reason=Reason.TOKEN_NOT_ACCEPTED, error_text=error)


def parsed(credential: object) -> Credential:
    """A credential as it was sent; one that cannot be read has no token."""
    try:
        return unpack(credential, Credential)
    except MessageError:
        return Credential()
