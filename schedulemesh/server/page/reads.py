"""What screens read: through the API's shared reads, and not again while the last answer is young.

So any number of open pages cost the supervisor no more than one of each read in ``YOUNG_S``, and where
there are events, in ``_PACE_S``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from schedulemesh.api.call import Call
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.nodes import ListNodeNames
from schedulemesh.api.pages import ListPage, PageQuery
from schedulemesh.api.tasks import ExplainTask
from schedulemesh.domain.language import Language
from schedulemesh.protocol.answers import AnyAnswer
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.requests import encode_request
from schedulemesh.server.answers import plain, rows_of
from schedulemesh.server.gateway import SupervisorClient
from schedulemesh.server.listings import Row
from schedulemesh.server.pacing import SearchPace
from schedulemesh.server.page.explanations import RecentExplanations
from schedulemesh.server.page.rehearsals import Rehearsals
from schedulemesh.server.problems import beyond_role
from schedulemesh.server.shared_reads import SharedReads

#: Seconds for which an answer is shown again while there are no events.
YOUNG_S = 0.8
#: While there are events, seconds between two equal reads: at least, and of a slow supervisor so many times
#: what the last one took, up to ``YOUNG_S``.
_PACE_S, _PATIENCE = 0.25, 4.0
#: How many answers are kept.
_MOST = 64


class PacedReads:
    """A way to the supervisor on which searches, such as explanations, are made one at a time and with rests:
    open pages of many tasks read one for each.
    """

    def __init__(self, gateway: SupervisorClient) -> None:
        self._gateway, self._pace = gateway, SearchPace()

    async def ask_packed(self, request: Call) -> bytes:
        """See ``SupervisorClient``."""
        ask = partial(self._gateway.ask_packed, request)
        return await (self._pace.search(ask, bytes) if request.searches else ask())


class _LastRead(msgspec.Struct):
    """The last of equal reads."""

    began: float
    #: Up to what it has to be true; see ``SharedReads.ask``.
    stamp: object
    #: Seconds that it took; until it is answered, those of the one before.
    took_s: float = 0.0
    #: None: it is not answered.
    answer: AnyAnswer | None = None

    @property
    def due(self) -> float:
        """When the next one may begin after an event."""
        return self.began + min(YOUNG_S, max(_PACE_S, _PATIENCE * self.took_s))


class RecentReads:
    """Shared reads whose answers are used again for a moment. After an event nobody gets an answer from
    before it: a page that is told of a change reads once, and would show for long what was before the change.
    """

    def __init__(
        self,
        reads: SharedReads,
        position: Callable[[], int | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``position``: how far the events are known; None: they are not followed."""
        self._reads, self._position, self._now = reads, position, now
        #: By request, the oldest first.
        self._last: dict[bytes, _LastRead] = {}
        #: How often something was changed here.
        self._changes = 0

    @property
    def stamp(self) -> tuple[int | None, int]:
        """Up to what an answer has to be true: equal while nothing is known to have happened."""
        return self._position(), self._changes

    async def ask(self, call: Call) -> AnyAnswer:
        """The answer to a call that changes nothing, of this moment or shortly before."""
        key = encode_request(call)
        while True:
            now, stamp = self._now(), self.stamp
            last = self._last.get(key)
            if last is None or last.stamp == stamp or last.due <= now:
                break
            await asyncio.sleep(last.due - now)
        if last is not None and last.stamp == stamp and now - last.began < YOUNG_S:
            if last.answer is not None:
                return last.answer
        else:
            last = self._begun(key, now, stamp)
        last.answer = answer = await self._reads.ask(call, stamp)
        last.took_s = self._now() - last.began
        return answer

    def outdated(self) -> None:
        """Something was changed: whoever looks next sees it."""
        self._changes += 1
        self._last.clear()

    def _begun(self, key: bytes, now: float, stamp: object) -> _LastRead:
        """A further read, which is the last one now; what is old is forgotten."""
        before = self._last.pop(key, None)
        last = _LastRead(now, stamp, 0.0 if before is None else before.took_s)
        self._last[key] = last
        old = [other for other, read in self._last.items() if now - read.began >= YOUNG_S]
        for other in old or list(self._last)[:-_MOST]:
            del self._last[other]
        return last


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
        explanations: RecentExplanations,
        gateway: SupervisorClient,
        rehearsals: Rehearsals,
        caller: TokenCaller,
        language: Language,
    ) -> None:
        """``language``: of the screen."""
        self._reads, self._explanations, self._gateway = reads, explanations, gateway
        self.caller, self.rehearsals, self.language = caller, rehearsals, language
        #: Seconds until something of what was read may be newer; None: it is as of now.
        self.again_s: float | None = None

    async def answer(self, call: Call) -> AnyAnswer:
        """The answer to a call. Raises Problem where the role does not allow it."""
        if not call.allows(self.caller.role):
            raise beyond_role(self.caller, call.least_role)
        if not isinstance(call, ExplainTask):
            return await self._reads.ask(call)
        explanation = await self._explanations.ask(call)
        self.again_s = explanation.again_s or self.again_s
        return explanation.answer

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
