"""The application: which paths there are, and how a call becomes a request to the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar, get_args

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from schedulemesh.api.call import Call
from schedulemesh.api.calls import AUDITED
from schedulemesh.api.history import QueryEvents, QueryHistory
from schedulemesh.api.metrics import GetMetrics
from schedulemesh.api.nodes import Drain, ListNodeNames, NodeInfo, NodeName
from schedulemesh.api.pages import PageQuery
from schedulemesh.api.policies import ChangePolicy, ChangeQueuePolicy, GetPolicy
from schedulemesh.api.pools import ListCohorts, ListPools
from schedulemesh.api.rows import NameOf, named_by
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.api.tokens import AnyTokenChange
from schedulemesh.config.http import HttpSettings
from schedulemesh.domain.language import Language
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.node_names import nodes_named, unknown_node
from schedulemesh.domain.priorities import UnknownPriorityClassError, with_own_classes
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.request_ids import keyed, new_request_id
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError, nearest
from schedulemesh.metrics.exposition import CONTENT_TYPE
from schedulemesh.protocol.answers import AnyAnswer, Details
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.credentials import hash_of, is_nonce, new_secret
from schedulemesh.protocol.large_bytes import joined
from schedulemesh.protocol.long_answers import with_encoded_lists
from schedulemesh.protocol.msgpack_head import LARGE
from schedulemesh.protocol.requests import MAX_VALUES, check_values, decode_request
from schedulemesh.server import bodies
from schedulemesh.server.answers import plain, rows_of
from schedulemesh.server.change import ChangeRoute, ReceivedChange
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.connections import Connections
from schedulemesh.server.disconnection import while_connected
from schedulemesh.server.event_feed import EventFeed
from schedulemesh.server.event_streams import (
    MAX_STREAMS,
    MAX_STREAMS_OF_TOKEN,
    EventFilter,
    EventStream,
    OpenStreams,
)
from schedulemesh.server.gateway import SupervisorClient
from schedulemesh.server.guard import BasePath, Guard, TokenSource, address_of, is_page, secret_in
from schedulemesh.server.history import QUESTIONS, STREAM_PARAMETERS, STREAM_PATH, Question
from schedulemesh.server.listings import ListingPage, Row, page_answer, page_of, page_query
from schedulemesh.server.openapi import document
from schedulemesh.server.pacing import AnswerT, TokenSearchPace
from schedulemesh.server.page.app import Page
from schedulemesh.server.parameters import read_parameters
from schedulemesh.server.peers import with_user
from schedulemesh.server.problems import (
    Problem,
    answer_failure,
    answer_problem,
    answer_unknown,
    beyond_role,
    encode_json,
    in_language,
    json_response,
    language_of,
    unavailable,
)
from schedulemesh.server.reads import LISTINGS, SINGLES, ListingEndpoint, Single
from schedulemesh.server.request_limits import check_json
from schedulemesh.server.shared_reads import SharedReads
from schedulemesh.server.task_reads import TASK_READS, TaskRead

API = "/api/v1"
#: The type of requests and answers in the form in which the supervisor takes and gives them.
MSGPACK = "application/msgpack"
#: Bytes of a body above which it is checked beside the loop.
_LARGE = 16 * 1024
#: Reads of one token that are made at a time; others wait, so that nobody gets more of the supervisor by
#: asking more at once.
_READS_OF_TOKEN = 4
#: The type of a stream of events.
EVENTS = "text/event-stream"
#: Requests after which tokens are read again.
TOKEN_CHANGES = get_args(AnyTokenChange)

#: The lists of what rows name, the fields with names, and the code for a name that is not in them.
_LISTS = {
    NameOf.POOL: (ListPools(), ("name",), Reason.POOL_NOT_FOUND.value),
    NameOf.COHORT: (ListCohorts(), ("name",), Reason.COHORT_NOT_FOUND.value),
    NameOf.NODE: (ListNodeNames(), tuple(NodeName.__annotations__), Reason.NODE_NOT_FOUND.value),
}

Checked = TypeVar("Checked")
Value = TypeVar("Value")
Endpoint = Callable[[Request], Awaitable[ASGIApp]]
ExceptionHandler = Callable[[Request, Exception], Response]
PageHandler = Callable[[Request, Exception], Awaitable[Response]]


def application(
    gateway: SupervisorClient,
    tokens: TokenSource,
    settings: HttpSettings,
    feed: EventFeed,
    prove: Callable[[str], str],
    connections: Connections,
) -> Starlette:
    """The HTTP API and the page of the scheduler behind a gateway. ``prove``: the proof of this process for a
    nonce.
    """
    reads = SharedReads(gateway)
    page = Page(gateway, tokens, feed, connections, settings)
    app = Starlette(
        middleware=[
            Middleware(BasePath, base_path=settings.base_path),
            Middleware(Guard, settings=settings, tokens=tokens, connections=connections),
        ],
        exception_handlers={
            Problem: answer_problem,
            HTTPException: _for_both(page.unknown, answer_unknown),
            SchedulerUnavailableError: _unavailable,
            InvalidRequestError: _invalid,
            ClientDisconnect: _disconnected,
            Exception: _for_both(page.failed, answer_failure),
        },
    )
    app.router = _Router([*page.routes(), *_routes(_Calls(gateway, tokens, feed, prove, reads))])
    return app


class _Router(Router):
    """Has the routes whose paths are no patterns by path: there are dozens of others to be tried."""

    def __init__(self, routes: Sequence[Route]) -> None:
        # A slash too many is answered as any other path that is no call.
        super().__init__(routes, redirect_slashes=False)
        #: By path and method.
        self._by_path: dict[tuple[str, str], Route] = {}
        for number, route in enumerate(routes):
            patterns = (each for each in routes[:number] if each.path != route.path)
            if route.param_convertors or any(
                each.path_regex.match(route.path) for each in patterns
            ):
                continue
            for method in route.methods or ():
                self._by_path.setdefault((route.path, method), route)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Router."""
        route = self._by_path.get((scope["path"], scope.get("method", "")))
        if route is None:
            await super().app(scope, receive, send)
            return
        scope.update(router=self, route=route, endpoint=route.endpoint, path_params={})
        await route.app(scope, receive, send)


def _for_both(of_page: PageHandler, of_calls: ExceptionHandler) -> PageHandler:
    """What answers an error with a page where a page was asked for, else with JSON."""

    async def answer(request: Request, error: Exception) -> Response:
        if is_page(request.url.path):
            return await of_page(request, error)
        return of_calls(request, error)

    return answer


def _routes(calls: _Calls) -> list[Route]:
    """Paths in the order in which they are tried: those that end in a name match most, so they come last."""
    routes = [
        Route("/healthz", calls.healthz, methods=["GET"]),
        Route("/proof", calls.proof, methods=["GET"]),
        Route("/metrics", calls.metrics, methods=["GET"]),
        _route("/requests", calls.packed, "POST"),
        _route("/openapi.json", calls.openapi, "GET"),
        _route(STREAM_PATH, calls.stream, "GET"),
    ]
    routes += [_route(change.path, calls.change(change), change.method) for change in CHANGES]
    routes += [_route(listing.path, calls.listing(listing), "GET") for listing in LISTINGS]
    routes += [_route(read.path, calls.task_read(read), "GET") for read in TASK_READS]
    routes += [_route(single.path, calls.single(single), "GET") for single in SINGLES]
    routes += [_route(question.path, calls.question(question), "GET") for question in QUESTIONS]
    routes += [
        _route(f"{listing.path}/{{{listing.key[0]}:name}}", calls.row(listing), "GET")
        for listing in LISTINGS
        if listing.missing is not None
    ]
    return routes


def _route(path: str, endpoint: Endpoint, method: str) -> Route:
    return Route(f"{API}{path}", _Call(endpoint), methods=[method])


class _Call:
    """An endpoint as an ASGI application. Of a function, Starlette would handle the errors a second time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


@cache
def _document() -> msgspec.Raw:
    """The OpenAPI document of the API, encoded: to make and to encode it takes as long as many requests."""
    return msgspec.Raw(encode_json(document(API)))


class _Calls:
    """The endpoints."""

    def __init__(
        self,
        gateway: SupervisorClient,
        tokens: TokenSource,
        feed: EventFeed,
        prove: Callable[[str], str],
        reads: SharedReads,
    ) -> None:
        self._gateway, self._tokens, self._feed = gateway, tokens, feed
        self._prove = prove
        self._reads = reads
        self._document = _document()
        self._streams = OpenStreams()
        #: Of the reads with each token, by its name.
        self._turns: dict[str, asyncio.Semaphore] = {}
        #: Of the searches with each token, by its name.
        self._paces: dict[str, TokenSearchPace] = {}
        #: Held while a large body is checked.
        self._large_bodies = asyncio.Lock()

    async def healthz(self, _request: Request) -> Response:
        """Whether this process serves; it says nothing about the supervisor."""
        return json_response({"success": True})

    async def proof(self, request: Request) -> Response:
        """That this is the process that wrote the scheduler's file on this machine."""
        nonce = request.query_params.get("nonce", "")
        if not is_nonce(nonce):
            raise Problem(
                400, "invalid_request", "give nonce=, 64 random characters of 0-9 and a-f"
            )
        return json_response({"success": True, "proof": self._prove(nonce)})

    async def metrics(self, request: Request) -> Response:
        """All metrics for a Prometheus server, which needs no token on this machine. ``agents=true`` adds
        what each agent uses.
        """
        agents = request.query_params.get("agents") == "true"
        facts = plain(await self._reads.ask(GetMetrics(agents=agents)))
        return Response(facts["text"], media_type=CONTENT_TYPE)

    async def openapi(self, _request: Request) -> Response:
        """The OpenAPI document."""
        return json_response(self._document)

    async def packed(self, request: Request) -> Response:
        """Any request in its packed form, answered in packed form."""
        if request.headers.get("content-type") != MSGPACK:
            raise Problem(415, "media_type_not_supported", f"this call takes {MSGPACK}")
        data = await _body_of(request)
        decoded = await self._checked(data, partial(decode_request, data))
        kind = type(decoded)
        if not kind.changes_state:
            _allowed(request, kind)
        caller: TokenCaller = request.state.caller
        if kind in AUDITED:
            caller = await with_user(caller, request.scope)
        call = _by(caller, decoded)
        ask = partial(self._gateway.ask_packed, call, caller)
        response = await self._answered(request, call, ask, _packed_response)
        # The supervisor has refused a change that the role does not allow, and has recorded it.
        _allowed(request, kind)
        if kind in TOKEN_CHANGES:
            self._tokens.outdated()
        return response

    async def _answered(
        self,
        request: Request,
        call: Call,
        ask: Callable[[], Awaitable[AnswerT]],
        respond: Callable[[AnswerT], Value],
    ) -> Value:
        """What ``respond`` makes of the answer to a call. Raises Problem where the client has gone away
        meanwhile, or where it had to wait and its token is accepted no more.
        """
        kind, client = type(call), request.state.client
        if call.searches:
            allowed_ask = partial(self._if_still_allowed, request, kind, ask)
            search = partial(self._pace_of(request).search, allowed_ask, respond)
            return await while_connected(client, search)
        if call.changes_state and not call.waits:
            return respond(await ask())
        if not (call.changes_state or call.waits):
            return respond(await self._in_turn(request, kind, ask))
        answer = await while_connected(client, ask, ends=not call.changes_state)
        await self._check_still_allowed(request, kind)
        return respond(answer)

    def _turn_of(self, request: Request) -> asyncio.Semaphore:
        """That of the reads with the token of a request."""
        caller: TokenCaller = request.state.caller
        return self._turns.setdefault(caller.token.name, asyncio.Semaphore(_READS_OF_TOKEN))

    def _pace_of(self, request: Request) -> TokenSearchPace:
        """That of the searches with the token of a request."""
        caller: TokenCaller = request.state.caller
        return self._paces.setdefault(caller.token.name, TokenSearchPace())

    async def _check_still_allowed(self, request: Request, kind: type[Call]) -> None:
        """Raise Problem where the token of a request was revoked, or has another role, while it waited."""
        secret = secret_in(request.headers)
        caller = await self._tokens.caller(secret, address_of(request.scope))
        if caller is None or not kind.allows(caller.role):
            carried_out = "; what it asked for may have been done" if kind.changes_state else ""
            raise Problem(
                401,
                Reason.TOKEN_NOT_ACCEPTED.value,
                f"the token was revoked, or expired, meanwhile{carried_out}",
            )

    async def _if_still_allowed(
        self, request: Request, kind: type[Call], ask: Callable[[], Awaitable[Value]]
    ) -> Value:
        """What is asked for in the turn of a request, which may have waited for that for long. Raises as
        ``_check_still_allowed``.
        """
        await self._check_still_allowed(request, kind)
        return await ask()

    async def _checked(self, data: bytes, check: Callable[[], Checked]) -> Checked:
        """What a body is. Checking a large one, and hashing what is stored of it, takes its time, while
        others are served; one at a time, because each that is checked takes the interpreter's lock from them.
        """
        if len(data) <= _LARGE:
            return check()
        async with self._large_bodies:
            return await asyncio.to_thread(check)

    async def _call_of(self, data: bytes, read: Callable[[], Call]) -> Call:
        """The request that a body stands for, whose priority may be an own class of the policy."""
        try:
            return await self._checked(data, read)
        except UnknownPriorityClassError:
            policy = plain(await self._reads.ask(GetPolicy()))["policy"]
            own_classes = policy["priority_classes"]
            return await self._checked(data, partial(with_own_classes, own_classes, read))

    def listing(self, listing: ListingEndpoint) -> Endpoint:
        """The endpoint of a listing."""

        async def answer(request: Request) -> Response:
            kind = type(listing.request)
            _allowed(request, kind)
            return await self._in_turn(request, kind, partial(listed, request.query_params))

        async def listed(query: QueryParams) -> Response:
            page = await self._page(listing, query)
            if not page.total:
                await self._check_names(listing.row, query)
            return await self._rows_response(
                {
                    "success": True,
                    "items": page.items,
                    "total": page.total,
                    "next": page.following,
                }
            )

        return answer

    async def _in_turn(
        self, request: Request, kind: type[Call], read: Callable[[], Awaitable[Value]]
    ) -> Value:
        """The result of a read, made when its turn has come among those with the same token. Raises as
        ``_check_still_allowed`` where it had to wait for that.
        """
        turn = self._turn_of(request)
        if turn.locked():
            read = partial(self._if_still_allowed, request, kind, read)
        return await while_connected(request.state.client, read, turn)

    async def _page(self, listing: ListingEndpoint, query: QueryParams) -> ListingPage:
        """The page of a listing that a query asks for."""
        if listing.paged:
            page = page_query(listing.row, listing.key, query)
            facts = plain(await self._reads.ask(listing.page_request(page)))
            return page_answer(facts["items"], facts["total"], page, more=facts["more"])
        rows = rows_of(await self._reads.ask(listing.request))
        return await page_of(rows, listing.row, listing.key, query, self._reads.turns)

    async def _rows_of(self, listing: ListingEndpoint, name: str) -> Sequence[Row]:
        """The rows of a listing with this name, and maybe others."""
        if listing.paged:
            key = listing.key[0]
            page = PageQuery(fields=((key, (name,)),), order=((key, False),), limit=1)
            facts = plain(await self._reads.ask(listing.page_request(page)))
            return list(facts["items"])
        return rows_of(await self._reads.ask(listing.request))

    def row(self, listing: ListingEndpoint) -> Endpoint:
        """The endpoint of one row of a listing."""
        key = listing.key[0]

        async def answer(request: Request) -> Response:
            _allowed(request, type(listing.request))
            _check_no_parameters(request)
            name = parse_name(request.path_params[key], key)
            read = partial(self._rows_of, listing, name)
            rows = await self._in_turn(request, type(listing.request), read)
            error = f"there is nothing of the name {name!r} in {listing.path}"
            if listing.row is NodeInfo:
                nodes = {row["node_id"]: (row["host"], row["address"]) for row in rows}
                named = nodes_named(name, nodes)
                error = str(unknown_node(name, named, nodes))
                name = named[0] if len(named) == 1 else name
            for row in rows:
                if row[key] == name:
                    return json_response({"success": True, **row})
            raise Problem(404, str(listing.missing), error)

        return answer

    def single(self, single: Single) -> Endpoint:
        """The endpoint of one object."""

        async def answer(request: Request) -> Response:
            call = single.request(request.path_params)
            _allowed(request, type(call))
            _check_no_parameters(request)
            ask = partial(self._reads.ask, call)
            respond = partial(plain, language=language_of(request))
            return await self._rows_response(await self._answered(request, call, ask, respond))

        return answer

    def question(self, question: Question) -> Endpoint:
        """The endpoint of a question about the history."""

        async def answer(request: Request) -> Response:
            _allowed(request, question.asks)
            query = request.query_params
            read = partial(answered, query, question.read_query(query))
            return await self._in_turn(request, question.asks, read)

        async def answered(query: QueryParams, parameters: Mapping[str, Any]) -> Response:
            facts = plain(await self._reads.ask(question.request(parameters)))
            page = await question.answer(facts, parameters, query, self._reads.turns)
            if not page["items"]:
                await self._check_names(question.row, query)
            return await self._rows_response({"success": True, **page})

        return answer

    async def _rows_response(self, content: dict[str, Any]) -> Response:
        """Plain data as JSON, encoded in portions where it has many rows."""
        return json_response(await with_encoded_lists(content, encode_json, self._reads.turns))

    async def _check_names(self, row_type: type, query: QueryParams) -> None:
        """Raise Problem where a query that found no row names a pool, a cohort or a node that never was."""
        for field, name in query.multi_items():
            kind = named_by(row_type, field)
            if kind not in _LISTS or not name:
                continue
            listed, keys, reason = _LISTS[kind]
            rows = rows_of(await self._reads.ask(listed))
            names = {str(row[key]) for row in rows for key in keys}
            if name in names or (kind is NameOf.POOL and await self._was_pool(name)):
                continue
            what = f"there is no {kind.value} {name!r}{nearest(name, names)}"
            raise Problem(
                404, reason, f"{what}; GET {API}/{kind.value}s lists those that there are"
            )

    async def _was_pool(self, name: str) -> bool:
        """Whether the history has an attempt in a pool of this name."""
        answer = await self._reads.ask(QueryHistory(pool_name=name, limit=1))
        return isinstance(answer, Details) and bool(answer.facts["attempts"])

    async def stream(self, request: Request) -> ASGIApp:
        """A stream of events."""
        _allowed(request, QueryEvents)
        parameters = read_parameters(request.query_params, STREAM_PARAMETERS)
        after = parameters["after"]
        if resumed := request.headers.get("last-event-id"):
            after = STREAM_PARAMETERS[-1].read(resumed, "Last-Event-ID")
        token = request.state.caller.token.name
        self._streams.check(token, MAX_STREAMS, MAX_STREAMS_OF_TOKEN)
        if request.method == "HEAD":
            return Response(headers={"cache-control": "no-store"}, media_type=EVENTS)
        secret, address = secret_in(request.headers), address_of(request.scope)

        async def accepted() -> bool:
            caller = await self._tokens.caller(secret, address)
            return caller is not None and QueryEvents.allows(caller.role)

        event_filter = EventFilter(
            parameters["task_id"], parameters["pool_name"], frozenset(parameters["kind"])
        )
        stream = EventStream(self._feed, event_filter, after, accepted)
        return self._streams.counted(token, stream)

    def change(self, change: ChangeRoute) -> Endpoint:
        """The endpoint of a change."""

        async def answer(request: Request) -> Response:
            caller: TokenCaller = request.state.caller
            secret = new_secret()
            data = await _body_of(request)
            is_packed = _is_packed(request, change)
            try:
                _check_no_parameters(request)
                read = partial(self._asked, request, change, secret, data)
                call = await self._call_of(data, read)
            except (Problem, InvalidRequestError):
                _allowed(request, change.asks)
                raise
            # What the role does not allow is refused by the supervisor, which records it.
            if change.asks in AUDITED:
                caller = await with_user(caller, request.scope)
            if is_packed:
                ask_packed = partial(self._gateway.ask_packed, call, caller)
                return await self._answered(request, call, ask_packed, _packed_response)
            ask = partial(self._gateway.ask, call, caller)
            if change.reveals:
                respond = partial(_response_with_secret, secret, language_of(request))
            else:
                respond = partial(_change_response, call, language_of(request))
            response = await self._answered(request, call, ask, respond)
            if change.asks in TOKEN_CHANGES:
                self._tokens.outdated()
            return response

        return answer

    def task_read(self, read: TaskRead) -> Endpoint:
        """The endpoint of a read about a task, which the supervisor allows its owner."""

        async def answer(request: Request) -> Response:
            _allowed(request, read.asks)
            parameters = read_parameters(request.query_params, read.parameters)
            task_id = parse_name(request.path_params["task_id"], "task_id")
            call = read.request(task_id, parameters)
            ask = partial(self._gateway.ask, call, request.state.caller)
            facts = await self._answered(request, call, ask, read.facts_of)
            return json_response({"success": True, "task_id": task_id, **facts})

        return answer

    def _asked(self, request: Request, change: ChangeRoute, secret: str, data: bytes) -> Call:
        """The request for a change with this body. Raises Problem and InvalidRequestError."""
        caller: TokenCaller = request.state.caller
        body = _body(data, change, is_packed=_is_packed(request, change))
        received = ReceivedChange(
            path=request.path_params,
            body=body,
            client=caller.client,
            owner=caller.token.owner,
            packed_runner=self._gateway.packed_runner,
            secret_hash=hash_of(secret),
            # No secret is kept for a repetition, so each request for one has a content of its own.
            request_id=_request_id(request, hash_of(secret) if change.reveals else body),
        )
        return _with_id(change.request(received), received.request_id)


async def _body_of(request: Request) -> bytes:
    """The body of a request; a large one is put together while others are served."""
    parts = [part async for part in request.stream()]
    if sum(map(len, parts)) <= LARGE:
        return b"".join(parts)
    return await asyncio.to_thread(joined, parts)


def _packed_response(encoded: bytes) -> Response:
    """The response with an answer in the form in which the supervisor has encoded it."""
    return Response(encoded, media_type=MSGPACK)


def _change_response(call: Call, language: Language, answer: AnyAnswer) -> Response:
    """The response to a change, its warnings in a language. Raises Problem for a refusal."""
    facts = plain(answer)
    if isinstance(call, SubmitTask) and call.submission.dry_run:
        del facts["state"]
        facts["dry_run"] = True
    return json_response(_with_warnings(facts, language))


def _with_warnings(facts: dict[str, Any], language: Language) -> dict[str, Any]:
    """The answer to a change, its warnings in a language; texts of others in it stay as they are."""
    if "warnings" not in facts:
        return facts
    sentences = {field: facts[field] for field in ("warnings", "sentences")}
    return {**facts, **in_language(sentences, language)}


def _response_with_secret(secret: str, language: Language, answer: AnyAnswer) -> Response:
    """The response to a change that has made a secret: a repetition is refused, because that was not kept."""
    try:
        return json_response({**_with_warnings(plain(answer), language), "token": secret})
    except Problem as problem:
        if problem.body["reason"] != Reason.REQUEST_ID_REUSED.value:
            raise
        raise Problem(
            problem.status,
            Reason.REQUEST_ID_REUSED.value,
            "a request was made with this key before, and only its answer had the secret; see GET /tokens "
            "whether the token was issued, and give it another secret with POST /tokens/NAME/rotate and "
            "another key",
        ) from None


def _by(caller: TokenCaller, request: Call) -> Call:
    """A request that has its real author where who asked is shown with what was changed."""
    if isinstance(request, (ChangePolicy, ChangeQueuePolicy, Drain, *TOKEN_CHANGES)):
        return msgspec.structs.replace(request, client=caller.client)
    return request


def _allowed(request: Request, kind: type[Call]) -> TokenCaller:
    """Who sent a request. Raises Problem where the role may not make requests of this class."""
    caller: TokenCaller = request.state.caller
    if kind.allows(caller.role):
        return caller
    raise beyond_role(caller, kind.least_role)


def _check_no_parameters(request: Request) -> None:
    """Raise InvalidRequestError for a query, which a call without parameters would ignore."""
    if request.scope["query_string"]:
        names = ", ".join(request.query_params)
        raise InvalidRequestError(
            f"this call has no parameters in its query, and {names!r} is given; what a change takes is in "
            "its body"
        )


def _is_packed(request: Request, change: ChangeRoute) -> bool:
    """Whether a change came in packed form, and is answered in it."""
    return change.packed and request.headers.get("content-type") == MSGPACK


def _body(data: bytes, change: ChangeRoute, *, is_packed: bool) -> Any:
    """The body of a change; an empty one has no fields. Raises Problem."""
    kind = change.body
    try:
        if is_packed:
            # Whatever follows is copied, value by value.
            check_values(data, most_bytes=MAX_VALUES)
            return msgspec.msgpack.decode(data, type=kind)
        check_json(data, has_archive=change.packed)
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Problem(
            400, "invalid_request", f"the body is not valid: {bodies.explained(str(error), kind)}"
        ) from error


def _with_id(call: Call, request_id: str) -> Call:
    """A change with the id by which its repetition is recognised; a submission has it already."""
    if not hasattr(call, "request_id"):
        return call
    return msgspec.structs.replace(call, request_id=request_id)


def _request_id(request: Request, body: object) -> str:
    """The id of a change. A key is one of this token for this call: others who use the same key, and other
    changes, are no repetitions; the same key with another body is refused.
    """
    idempotency_keys = request.headers.getlist("idempotency-key")
    if not idempotency_keys:
        return new_request_id()
    if len(idempotency_keys) > 1:
        raise InvalidRequestError("the header Idempotency-Key is given more than once")
    key = parse_name(idempotency_keys[0], "Idempotency-Key")
    content = msgspec.json.encode(body, order="deterministic")
    return keyed((request.method, request.url.path, key), content)


def _disconnected(_request: Request, _error: Exception) -> Response:
    """What nobody gets, because the client has gone away before its body has arrived. Clients may do so as
    often as they like, so the log says nothing of it.
    """
    return Response(status_code=408)


def _unavailable(request: Request, error: Exception) -> Response:
    return answer_problem(request, unavailable(error))


def _invalid(request: Request, error: Exception) -> Response:
    return answer_problem(request, Problem(400, "invalid_request", str(error)))
