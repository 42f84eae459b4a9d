"""Sessions of browsers: whoever shows a token once gets a cookie in its place.

The cookie has a random id, which only this process knows. Nothing of a token is in it, and this process keeps
the token's hash only. A session ends when its token is not accepted any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from hashlib import sha256

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.credentials import hash_of, new_secret
from schedulemesh.server.guard import TokenSource, address_of
from schedulemesh.server.problems import Problem

#: Seconds after which a session ends, however much it is used.
LIFETIME_S = 12 * 3600
#: Sessions with one token; above it the oldest of them ends.
MAX_SESSIONS_OF_TOKEN = 50
#: Characters of a cookie that are looked at.
_MOST_OF_ID = 100


#: The header in which a proxy says who looks at the page, and what the name of that user's token begins with:
#: tokens of machines are not those of users of the same name.
USER_HEADER, USER_TOKEN = "x-forwarded-user", "user:"


class _Session(msgspec.Struct, frozen=True, kw_only=True):
    """One browser that is signed in."""

    #: Of the secret of its token.
    token_hash: str
    #: By the clock of ``Sessions``.
    expires_at: float


class Sessions:
    """Tells who has a session. They are not stored: when this process ends, so do they."""

    def __init__(self, tokens: TokenSource, now: Callable[[], float] = time.monotonic) -> None:
        self._tokens, self._now = tokens, now
        #: By the hash of the cookie's id, the oldest first. How long a search for a hash takes says nothing
        #: about any id.
        self._sessions: dict[str, _Session] = {}

    async def begin(self, secret: str, address: str) -> str | None:
        """The id of a new session for the holder of a token; None: the token is not accepted.

        Raises SchedulerUnavailableError while it is not known which tokens are accepted.
        """
        if await self._tokens.caller(secret, address) is None:
            self._tokens.refused()
            return None
        session_id, token_hash = new_secret(), hash_of(secret)
        self._make_room(token_hash)
        expires_at = self._now() + LIFETIME_S
        self._sessions[_hashed(session_id)] = _Session(token_hash=token_hash, expires_at=expires_at)
        return session_id

    async def caller(self, session_id: str, address: str) -> TokenCaller | None:
        """Who has this session; None: nobody, or its token is not accepted any more. Raises as ``begin``."""
        session = self._sessions.get(_hashed(session_id))
        if session is None:
            return None
        caller = None
        if session.expires_at > self._now():
            caller = await self._tokens.holder(session.token_hash, address)
        if caller is None:
            self.end(session_id)
        return caller

    def end(self, session_id: str) -> None:
        """Forget a session, if there is one of this id."""
        self._sessions.pop(_hashed(session_id), None)

    def _make_room(self, token_hash: str) -> None:
        """Forget those that have expired, and the oldest of a token that has too many."""
        now = self._now()
        expired = [key for key, session in self._sessions.items() if session.expires_at <= now]
        for key in expired:
            del self._sessions[key]
        of_token = [
            key for key, session in self._sessions.items() if session.token_hash == token_hash
        ]
        for key in of_token[: max(0, len(of_token) + 1 - MAX_SESSIONS_OF_TOKEN)]:
            del self._sessions[key]


class Visitors:
    """Tells who looks at the page: who has a session, or whom a trusted proxy names."""

    def __init__(self, sessions: Sessions, tokens: TokenSource, proxies: Collection[str]) -> None:
        self._sessions, self._tokens, self._proxies = sessions, tokens, proxies

    async def caller(self, request: Request) -> TokenCaller | None:
        """Who sends a request; None: nobody. Raises Problem where a proxy names a user who has no token, and
        as ``Sessions.begin``.
        """
        address = address_of(request.scope)
        user = self.user(request)
        if not user:
            return await self._sessions.caller(session_in(request), address)
        caller = await self._tokens.named(f"{USER_TOKEN}{user}", address)
        if caller is None:
            self._tokens.refused()
            raise Problem(
                403,
                Reason.TOKEN_NOT_ACCEPTED.value,
                say("no_token_of_user", user=user, token=f"{USER_TOKEN}{user}"),
            )
        return caller

    def user(self, request: Request) -> str:
        """The user whom a trusted proxy names; empty: none does. Raises Problem."""
        names = request.headers.getlist(USER_HEADER)
        if not names or address_of(request.scope) not in self._proxies:
            return ""
        if len(names) > 1:
            error = say("header_given_twice", header=USER_HEADER)
            raise Problem(400, "invalid_request", error)
        return names[0].strip()


def _hashed(session_id: str) -> str:
    return sha256(session_id.encode(errors="surrogatepass")).hexdigest()


def session_in(request: Request) -> str:
    """The id in the cookie of a request; empty: it has none."""
    return request.cookies.get(_cookie(request), "")[:_MOST_OF_ID]


def set_session(request: Request, response: Response, session_id: str, base_path: str = "") -> None:
    """Have the browser keep a session, for this path; an empty id removes it."""
    response.set_cookie(
        _cookie(request),
        session_id,
        max_age=LIFETIME_S if session_id else 0,
        path=base_path or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


def _cookie(request: Request) -> str:
    """The name of the cookie. Browsers send cookies to every port of a host, so each server on a machine has
    a name of its own.
    """
    _, port = request.scope.get("server") or ("", 0)
    return f"schedulemesh_session_{port}"
