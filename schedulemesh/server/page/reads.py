"""What screens read: through the API's shared reads, and not again while the last answer is young.

So any number of open pages cost the supervisor no more than one of each read in ``_YOUNG_S``, and where
there are events, in ``_AT_LEAST_S``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from schedulemesh.api.call import Call
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.nodes import ListNodeNames
from schedulemesh.api.pages import ListPage, PageQuery
from schedulemesh.domain.language import Language
from schedulemesh.domain.reasons import Reason
from schedulemesh.protocol.answers import AnyAnswer
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server.answers import plain, rows_of
from schedulemesh.server.gateway import SupervisorClient
from schedulemesh.server.listings import Row
from schedulemesh.server.page.rehearsals import Rehearsals
from schedulemesh.server.problems import Problem
from schedulemesh.server.shared_reads import SharedReads

#: Seconds for which an answer is shown again: while there are no events, and in any case; and how many
#: answers are kept.
_YOUNG_S, _AT_LEAST_S, _MOST = 0.8, 0.1, 64


class RecentReads:
    """Shared reads whose answers are used again for a moment."""

    def __init__(
        self,
        reads: SharedReads,
        position: Callable[[], int | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``position``: how far the events are known; None: they are not followed."""
        self._reads, self._position, self._now = reads, position, now
        #: When each answer was asked for, after which event, the oldest first.
        self._answers: dict[bytes, tuple[float, int | None, AnyAnswer]] = {}

    async def ask(self, call: Call) -> AnyAnswer:
        """The answer to a call that changes nothing, of this moment or shortly before."""
        key, now, position = encode_request(call), self._now(), self._position()
        at, after, answer = self._answers.get(key, (float("-inf"), None, None))
        young_s = _YOUNG_S if after == position else _AT_LEAST_S
        if answer is not None and now - at < young_s:
            return answer
        answer = await self._reads.ask(call)
        self._answers.pop(key, None)
        self._answers[key] = (now, position, answer)
        self._forget(now)
        return answer

    def outdated(self) -> None:
        """Something was changed: whoever looks next sees it."""
        self._answers.clear()

    def _forget(self, now: float) -> None:
        old = [key for key, (at, _, _) in self._answers.items() if now - at >= _YOUNG_S]
        for key in old or list(self._answers)[: max(0, len(self._answers) - _MOST)]:
            del self._answers[key]


class RowPage(NamedTuple):
    """Some rows of a listing."""

    items: list[Row]
    #: How many the filters let through.
    total: int
    #: Whether others follow.
    more: bool


class ScreenReads:
    """Reads on behalf of whoever looks at the page."""

    def __init__(
        self,
        reads: RecentReads,
        gateway: SupervisorClient,
        rehearsals: Rehearsals,
        caller: TokenCaller,
        language: Language,
    ) -> None:
        """``language``: of the screen."""
        self._reads, self._gateway, self.caller = reads, gateway, caller
        self.rehearsals, self.language = rehearsals, language

    async def answer(self, call: Call) -> AnyAnswer:
        """The answer to a call. Raises Problem where the role does not allow it."""
        if not call.allows(self.caller.role):
            raise Problem(
                403,
                Reason.NOT_ALLOWED.value,
                f"token {self.caller.token.name!r} has the role {self.caller.role.value}; this needs the "
                f"role {call.least_role.value}",
            )
        return await self._reads.ask(call)

    async def facts(self, call: Call) -> dict[str, Any]:
        """What a call answers about one thing. Raises Problem for a refusal."""
        return plain(await self.answer(call))

    async def rows(self, call: Call) -> Sequence[Row]:
        """The rows of a listing. Raises Problem for a refusal."""
        return rows_of(await self.answer(call))

    async def page(self, listing: str, query: PageQuery) -> RowPage:
        """Some rows of a listing that the supervisor makes page by page. Raises Problem for a refusal."""
        facts = await self.facts(ListPage(listing=listing, page=query))
        return RowPage(facts["items"], facts["total"], facts["more"])

    async def now(self) -> float:
        """The scheduler's time."""
        return float((await self.facts(GetAbout()))["time"])

    async def node_names(self) -> dict[str, str]:
        """What people call the living nodes, by id."""
        return {str(row["node_id"]): str(row["name"]) for row in await self.rows(ListNodeNames())}

    async def of_task(self, call: Call) -> AnyAnswer:
        """The answer to what only some may read of a task, which the supervisor decides."""
        return await self._gateway.ask(call, self.caller)


async def together(*reads: Any) -> list[Any]:
    """The results of reads that are made at the same time."""
    return list(await asyncio.gather(*reads))
