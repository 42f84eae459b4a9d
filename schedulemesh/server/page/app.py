"""Serves the page: its screens, signing in and out, its style; each answer with a strict security policy."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from schedulemesh.api.cluster import GetAbout
from schedulemesh.config.http import HttpSettings
from schedulemesh.domain.language import LANGUAGES, Language
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.sentences import say
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.processor_time import ProcessorTime
from schedulemesh.server.connections import Connections
from schedulemesh.server.event_feed import KEPT, EventFeed
from schedulemesh.server.event_streams import (
    MAX_PAGES,
    MAX_PAGES_OF_TOKEN,
    ChangeStream,
    OpenStreams,
)
from schedulemesh.server.gateway import SupervisorClient
from schedulemesh.server.guard import (
    CHANGE,
    SIGN_IN,
    SIGN_OUT,
    TokenSource,
    address_of,
    check_connection,
)
from schedulemesh.server.pacing import Elsewhere, TokenPace
from schedulemesh.server.page.actions import MAX_TARGETS, action_named
from schedulemesh.server.page.array import array
from schedulemesh.server.page.asked_for import check_parameters
from schedulemesh.server.page.audit import audit
from schedulemesh.server.page.carrying_out import carry_out, what_was_done
from schedulemesh.server.page.confirmation import after, confirmation, form_of, with_own_class
from schedulemesh.server.page.drawn_screens import DrawnScreens
from schedulemesh.server.page.evictions import evictions
from schedulemesh.server.page.explanations import RecentExplanations
from schedulemesh.server.page.links import ARRAY, RUNNING, TASK, link, link_to_task
from schedulemesh.server.page.nodes import nodes
from schedulemesh.server.page.overview import overview
from schedulemesh.server.page.policy import policy
from schedulemesh.server.page.queue import queue
from schedulemesh.server.page.reads import PacedReads, RecentReads, ScreenReads
from schedulemesh.server.page.rehearsal import REHEARSAL, begin_rehearsal, rehearsal
from schedulemesh.server.page.rehearsals import Rehearsals, run_command
from schedulemesh.server.page.running import running
from schedulemesh.server.page.sessions import (
    LIFETIME_S,
    Sessions,
    Visitors,
    session_in,
    set_session,
)
from schedulemesh.server.page.task import task
from schedulemesh.server.page.timeline import timeline
from schedulemesh.server.page.usage import usage, usage_csv
from schedulemesh.server.page.words import (
    WORDS,
    Words,
    clock_time,
    in_words,
    machine_time,
    number,
)
from schedulemesh.server.peers import with_user
from schedulemesh.server.problems import Problem, language_of
from schedulemesh.server.shared_reads import SharedReads

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_STYLE = (_FOLDER / "static" / "style.css").read_bytes()
_SCRIPT = (_FOLDER / "static" / "live.js").read_bytes()
_ICON = (_FOLDER / "static" / "icon.svg").read_bytes()
#: The address of a file changes with it, so browsers may keep it for as long as they like.
_STYLE_PATH = f"/style-{hashlib.sha256(_STYLE).hexdigest()[:12]}.css"
_SCRIPT_PATH = f"/live-{hashlib.sha256(_SCRIPT).hexdigest()[:12]}.js"
_ICON_PATH = f"/icon-{hashlib.sha256(_ICON).hexdigest()[:12]}.svg"
_KEPT = {"cache-control": "max-age=31536000, immutable", "x-content-type-options": "nosniff"}

#: The stream that says that something has changed.
_LIVE = "/live"
#: What every page may do: show itself, its style and its pictures, and send its own forms; and what a live
#: one may do besides.
_LIVE_POLICY = "script-src 'self'; connect-src 'self'; "
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not "no-referrer": browsers would send the forms of the page with the Origin "null".
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
#: Seconds between two reloads of a page: of one that asks for it, and of one that waits for the supervisor.
_REFRESH_S, _RETRY_S = 15, 5
#: Cookies with what a browser prefers, and the seconds for which they are kept.
_LANGUAGE, _REFRESH, _PREFERENCES_S = "schedulemesh_language", "schedulemesh_refresh", 365 * 86_400
#: An attribute of a template with an address of this page.
_OWN_ADDRESS = re.compile(r'(\s(?:href|action|src|data-live)=")/')
#: Seconds that the supervisor has to answer, or live pages say that it does not.
_ANSWER_S = 1.0
#: Seconds after which it is asked whether it answers while a page is not there yet, and that it has for that.
_PATIENCE_S, _STOPPED_S = 3.0, 5.0
#: Digits of a position in the events that is read.
_CURSOR_DIGITS = 16
#: Fields of a form that are read.
_FIELDS = MAX_TARGETS + 50

#: The parameters of what was used, as a screen and as a file.
_OF_USAGE = ("by", "label_key", "span")

View = Mapping[str, Any]


class Screen(NamedTuple):
    """One screen."""

    path: str
    #: Of its template, and of the text with its title.
    name: str
    #: What its template shows, for a query.
    view: Callable[[ScreenReads, QueryParams], Coroutine[Any, Any, View]]
    #: The parameters of its query; None: any.
    parameters: tuple[str, ...] | None = ()
    #: Whether the menu has it.
    in_menu: bool = True
    #: Whether it is shown anew when something has changed.
    is_live: bool = True
    #: Whose menu has it.
    least_role: Role = Role.VIEWER


SCREENS = (
    Screen("/", "overview", overview),
    Screen("/queue", "queue", queue, ("pool_name", "owner", "reason", "cursor", "select")),
    Screen(RUNNING, "running_tasks", running, ("pool_name", "owner", "cursor", "select")),
    Screen(TASK, "task", task, ("id",), in_menu=False),
    Screen(ARRAY, "array", array, ("id", "state", "after"), in_menu=False),
    Screen("/nodes", "nodes", nodes, ("name", "show", "page")),
    Screen(
        "/timeline",
        "timeline",
        timeline,
        ("span", "until", "by", "pool_name", "owner", "state", "page"),
    ),
    Screen("/evictions", "evictions", evictions, ("pool_name", "owner", "page")),
    Screen("/usage", "usage", usage, _OF_USAGE, is_live=False),
    Screen("/policy", "policy", policy, is_live=False),
    Screen(REHEARSAL, "rehearsal", rehearsal, ("busy",), is_live=False),
    Screen(
        "/audit",
        "audit",
        audit,
        ("token", "call", "outcome", "before"),
        is_live=False,
        least_role=Role.OPERATOR,
    ),
    Screen(CHANGE, "change", confirmation, None, in_menu=False, is_live=False),
)


class Visit(NamedTuple):
    """A request for a page: in which language, and how often it is to be repeated."""

    request: Request
    words: Words
    refreshes: bool
    #: The preferences that the request sets, by the name of the cookie.
    preferences: Mapping[str, str]


class Page:
    """The endpoints of the page."""

    def __init__(
        self,
        gateway: SupervisorClient,
        tokens: TokenSource,
        feed: EventFeed,
        connections: Connections,
        settings: HttpSettings,
    ) -> None:
        self._gateway, self._feed, self._connections = gateway, feed, connections
        reads = SharedReads(PacedReads(gateway))
        self._reads = RecentReads(reads, lambda: feed.cursor)
        self._explanations = RecentExplanations(
            self._reads.ask, lambda: self._reads.stamp, lambda cursor: feed.after(cursor, KEPT)
        )
        self._streams = OpenStreams()
        self._tokens, self._sessions = tokens, Sessions(tokens)
        self._visitors = Visitors(self._sessions, tokens, settings.proxies)
        self._base_path = settings.base_path
        self._rehearsals = Rehearsals(run_command)
        self._templates = _templates()
        #: Held while a screen is drawn, which takes as long as dozens of calls: beside the loop, where others
        #: are served, one at a time.
        self._drawing = asyncio.Lock()
        #: Of the screens with each token, by its name: the screens of others wait for one of it.
        self._paces: dict[str, TokenPace] = {}
        self._drawn_screens = DrawnScreens(lambda: self._reads.stamp)

    def routes(self) -> list[Route]:
        """The paths of the page."""
        screens = [
            Route(screen.path, partial(self._screen, screen), methods=["GET"]) for screen in SCREENS
        ]
        return [
            *screens,
            Route(CHANGE, self._change, methods=["POST"]),
            Route(REHEARSAL, self._rehearse, methods=["POST"]),
            Route(SIGN_IN, self._sign_in_form, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
            Route(_LIVE, self._live, methods=["GET"]),
            Route("/usage.csv", self._usage_csv, methods=["GET"]),
            Route(_STYLE_PATH, _style, methods=["GET"]),
            Route(_SCRIPT_PATH, _script, methods=["GET"]),
            Route(_ICON_PATH, _icon, methods=["GET"]),
        ]

    async def _screen(self, screen: Screen, request: Request) -> Response:
        """One screen; the form to sign in where the browser has no session."""
        frame: dict[str, Any] = {"screen": screen, "has_footer": True}

        async def drawn(visit: Visit, caller: TokenCaller) -> Response:
            draw = partial(self._read_and_drawn, screen, visit, caller, frame)
            if not screen.is_live or visit.preferences:
                return await draw()
            key = (
                str(request.url),
                visit.words.language,
                visit.refreshes,
                self._is_named(request),
                msgspec.msgpack.encode(caller.token),
            )
            return await self._drawn_screens.drawn(key, draw)

        return await self._in_session(request, drawn, frame)

    async def _read_and_drawn(
        self, screen: Screen, visit: Visit, caller: TokenCaller, frame: dict[str, Any]
    ) -> Response:
        """A screen as it is now. ``frame``: what its template shows besides, which is added."""
        reads = self._reads_of(visit, caller)
        about = await reads.facts(GetAbout())
        frame.update(caller=caller, scheduler=about["name"], now=about["time"])
        query = visit.request.query_params
        if screen.parameters is not None:
            check_parameters(visit.words, query, screen.parameters)
        viewed = ProcessorTime(screen.view(reads, query))
        view = await viewed
        shown = {**frame, "again_s": reads.again_s, **view}
        draw = partial(self._drawn, visit, f"{screen.name}.html", shown)

        async def drawn(elsewhere: Elsewhere) -> Response:
            elsewhere.seconds += viewed.seconds
            async with self._drawing:
                response, drawn_s = await asyncio.to_thread(_timed, draw)
            elsewhere.seconds += drawn_s
            return response

        return await self._paces.setdefault(caller.token.name, TokenPace()).run(drawn)

    def _reads_of(self, visit: Visit, caller: TokenCaller) -> ScreenReads:
        language = visit.words.language
        return ScreenReads(
            self._reads, self._explanations, self._gateway, self._rehearsals, caller, language
        )

    async def _rehearse(self, request: Request) -> Response:
        """Have a rehearsal made; the screen shows its answer."""

        async def begun(visit: Visit, caller: TokenCaller) -> Response:
            fields = dict(_pairs(await request.body()))
            is_begun = await begin_rehearsal(self._reads_of(visit, caller), fields)
            target = REHEARSAL if is_begun else link(REHEARSAL, ("busy", 1))
            return self._redirect(target)

        return await self._in_session(request, begun)

    async def _usage_csv(self, request: Request) -> Response:
        """What the screen of usage shows, as a file."""

        async def file(visit: Visit, caller: TokenCaller) -> Response:
            check_parameters(visit.words, request.query_params, _OF_USAGE)
            text = await usage_csv(self._reads_of(visit, caller), request.query_params)
            named = {"content-disposition": 'attachment; filename="usage.csv"'}
            return Response(text, 200, {**_HEADERS, **named}, "text/csv; charset=utf-8")

        return await self._in_session(request, file)

    async def _in_session(
        self,
        request: Request,
        answer: Callable[[Visit, TokenCaller], Awaitable[Response]],
        frame: View | None = None,
    ) -> Response:
        """The answer for whoever has a session, the form to sign in for others, and else a page that says why
        there is none. ``frame``: what else that page shows.
        """
        visit = _visit(request)
        if request.method != "GET" and not request.headers.get("origin"):
            return self.problem(visit, 403, visit.words.text("origin_missing"))

        async def answered() -> Response:
            caller = await self._visitors.caller(request)
            if caller is None:
                is_screen = request.method == "GET"
                following = _target(request.url.path, visit) if is_screen else "/"
                return self._sign_in_page(visit, following)
            check_connection(self._connections, request.scope, caller)
            request.state.caller = caller
            return await answer(visit, caller)

        try:
            return await self._while_answering(answered())
        except SchedulerUnavailableError:
            return self.unavailable(visit)
        except InvalidRequestError as error:
            shown = _problem_frame(getattr(request.state, "caller", None), frame)
            return self.problem(visit, 400, visit.words.error(error), frame=shown)
        except Problem as problem:
            shown = _problem_frame(getattr(request.state, "caller", None), frame)
            sentence = visit.words.problem(problem.body)
            return self.problem(visit, problem.status, sentence, problem.headers, shown)

    async def _while_answering(self, page: Coroutine[Any, Any, Response]) -> Response:
        """A page, however long it takes while the supervisor answers others. Raises SchedulerUnavailableError
        where it does not: one that is stopped keeps its connections, and the browser would show nothing until
        they time out.
        """
        task = asyncio.ensure_future(page)
        try:
            while True:
                await asyncio.wait([task], timeout=_PATIENCE_S)
                if task.done():
                    return task.result()
                if not await self._answers(_STOPPED_S):
                    raise SchedulerUnavailableError("the supervisor does not answer")
        finally:
            task.cancel()

    async def _change(self, request: Request) -> Response:
        """Carry out a change that was confirmed."""

        async def carried_out(visit: Visit, caller: TokenCaller) -> Response:
            return await self._carried_out(visit, caller, _pairs(await request.body()))

        return await self._in_session(request, carried_out)

    async def _carried_out(
        self, visit: Visit, caller: TokenCaller, fields: Sequence[tuple[str, str]]
    ) -> Response:
        """What came of a change. The supervisor checks the role, and records the change with the token."""
        named = dict(fields)
        action = action_named(named.get("do", ""))
        request_id = parse_name(named.get("form", ""), "form")
        form = form_of(fields, action, request_id, caller.client)
        form = await with_own_class(self._reads_of(visit, caller), form)
        author = await with_user(caller, visit.request.scope)
        outcomes = await carry_out(self._gateway, author, action, form, visit.words.language)
        self._reads.outdated()
        if action.subject == "token":
            self._tokens.outdated()
        reads = self._reads_of(visit, caller)
        names, now = await reads.node_names(), await reads.now()
        view = {
            "caller": caller,
            "now": now,
            "in_words": partial(in_words, node_names=names),
            "after": after(action, form.targets),
            **what_was_done(action, form, outcomes, names, visit.words),
        }
        return self._drawn(visit, "changed.html", view, 200 if view["done"] else 409)

    async def _live(self, request: Request) -> ASGIApp:
        """A stream that says when something has changed, until its session ends."""

        async def accepted() -> bool:
            try:
                return await self._visitors.caller(request) is not None
            except Problem:
                return False

        try:
            caller = await self._visitors.caller(request)
            if caller is None:
                return Response(status_code=401, headers=_HEADERS)
            check_connection(self._connections, request.scope, caller)
            self._streams.check(caller.token.name, MAX_PAGES, MAX_PAGES_OF_TOKEN)
        except SchedulerUnavailableError:
            return Response(status_code=503, headers=_HEADERS)
        except Problem as problem:
            return Response(str(problem), problem.status, {**_HEADERS, **problem.headers})
        last = request.headers.get("last-event-id", "")
        after = (
            int(last) if last.isascii() and last.isdigit() and len(last) < _CURSOR_DIGITS else None
        )
        stream = ChangeStream(self._feed, after, accepted, lambda: self._answers(_ANSWER_S))
        return self._streams.counted(caller.token.name, stream)

    async def _answers(self, within_s: float) -> bool:
        """Whether the supervisor answers within so many seconds; all pages share the read."""
        try:
            await asyncio.wait_for(self._reads.ask(GetAbout()), within_s)
        except (SchedulerUnavailableError, asyncio.TimeoutError, TimeoutError):
            return False
        return True

    async def _sign_in_form(self, request: Request) -> Response:
        return self._sign_in_page(_visit(request), following="/")

    async def _sign_in(self, request: Request) -> Response:
        """Begin a session with the token of a form."""
        visit = _visit(request)
        if not request.headers.get("origin"):
            return self.problem(visit, 403, visit.words.text("origin_missing"))
        try:
            fields = dict(_pairs(await request.body()))
            secret, following = fields.get("token", "").strip(), _own(fields.get("next", ""))
            session_id = await self._sessions.begin(secret, address_of(request.scope))
        except SchedulerUnavailableError:
            return self.unavailable(visit)
        except Problem as problem:
            sentence = visit.words.problem(problem.body)
            return self.problem(visit, problem.status, sentence, problem.headers)
        if session_id is None:
            return self._sign_in_page(visit, following, refused=True)
        self._sessions.end(session_in(request))
        response = self._redirect(following)
        set_session(request, response, session_id, self._base_path)
        return response

    async def _sign_out(self, request: Request) -> Response:
        """End the session of a browser."""
        visit = _visit(request)
        if not request.headers.get("origin"):
            return self.problem(visit, 403, visit.words.text("origin_missing"))
        self._sessions.end(session_in(request))
        response = self._redirect(SIGN_IN)
        set_session(request, response, "", self._base_path)
        return response

    def _sign_in_page(self, visit: Visit, following: str, *, refused: bool = False) -> Response:
        status = 403 if refused else 401 if visit.request.url.path != SIGN_IN else 200
        view = {
            "following": following,
            "refused": refused,
            "action": SIGN_IN,
            "hours": LIFETIME_S // 3600,
        }
        return self._drawn(visit, "sign_in.html", view, status)

    async def unknown(self, request: Request, error: Exception) -> Response:
        """The answer where there is no such page, or no such method; with the menu for who has a session."""
        visit = _visit(request)
        status = getattr(error, "status_code", 404)
        try:
            caller = await self._visitors.caller(request)
        except (SchedulerUnavailableError, Problem):
            caller = None
        error_text = visit.words.text("not_there")
        return self.problem(visit, status, error_text, frame=_problem_frame(caller))

    async def failed(self, request: Request, error: Exception) -> Response:
        """The answer where this process failed; its log says how."""
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        visit = _visit(request)
        return self.problem(visit, 500, visit.words.text("failed"))

    def problem(
        self,
        visit: Visit,
        status: int,
        error: str,
        headers: Mapping[str, str] | None = None,
        frame: View | None = None,
    ) -> Response:
        """A page that says why there is no other. ``frame``: what else its template shows."""
        view = {"heading": visit.words.text("problem"), "error": error}
        return self._drawn(visit, "problem.html", {**view, **(frame or {})}, status, headers)

    def unavailable(self, visit: Visit) -> Response:
        """A page that says that the supervisor does not answer, and tries again by itself, unless it was to
        change something: whether that was done is not known, and sending the same form again does it once.
        """
        text = visit.words.text
        is_read = visit.request.method == "GET"
        error = text("unavailable_detail" if is_read else "unavailable_change", seconds=_RETRY_S)
        view = {"heading": text("unavailable"), "error": error}
        headers = {"retry-after": str(_RETRY_S)} | ({"refresh": str(_RETRY_S)} if is_read else {})
        return self._drawn(visit, "problem.html", view, 503, headers)

    def _drawn(
        self,
        visit: Visit,
        template: str,
        view: View,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """A template as a page."""
        frame = {**_frame(visit), "has_session": not self._is_named(visit.request)}
        html = self._templates.get_template(template).render({**frame, **view})
        sent = {**_HEADERS, **(headers or {})}
        if (screen := view.get("screen")) is not None and screen.is_live:
            sent["content-security-policy"] = _LIVE_POLICY + _POLICY
        reload_s = view.get("reload_s") or (_REFRESH_S if visit.refreshes else None)
        if reload_s is not None and status == 200:
            sent["refresh"] = str(reload_s)
        response = Response(self._based(html), status, sent, "text/html; charset=utf-8")
        for name, value in visit.preferences.items():
            response.set_cookie(
                name,
                value,
                max_age=_PREFERENCES_S,
                path=self._base_path or "/",
                httponly=True,
                samesite="strict",
            )
        return response

    def _based(self, html: str) -> str:
        """A page whose own addresses have the path below which a proxy serves. Only templates begin an
        attribute so: quotes in values are escaped.
        """
        return _OWN_ADDRESS.sub(rf"\1{self._base_path}/", html) if self._base_path else html

    def _redirect(self, target: str) -> RedirectResponse:
        return RedirectResponse(f"{self._base_path}{target}", 303, _HEADERS)

    def _is_named(self, request: Request) -> bool:
        """Whether a proxy says who this is, so that there is no session to end."""
        try:
            return bool(self._visitors.user(request))
        except Problem:
            return False


def _timed(work: Callable[[], Response]) -> tuple[Response, float]:
    """The result of work, and its seconds on a processor."""
    began = time.thread_time()
    return work(), time.thread_time() - began


def _templates() -> Environment:
    """The templates, which escape every value that is put into them."""
    return Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def _frame(visit: Visit) -> dict[str, Any]:
    """What every template may show."""
    words, path = visit.words, visit.request.url.path
    other: Language = "en" if words.language == "zh" else "zh"
    return {
        "words": words,
        "t": words.text,
        "code": words.code,
        "span": words.span,
        "amount": words.amount,
        "amounts": words.amounts,
        "number": number,
        "clock_time": clock_time,
        "machine_time": machine_time,
        "link": link,
        "link_to_task": link_to_task,
        "quoted": shlex.quote,
        "screens": SCREENS,
        "screen": None,
        "caller": None,
        "has_footer": True,
        "again_s": None,
        "scheduler": "ScheduleMesh",
        "now": time.time(),
        "style": _STYLE_PATH,
        "icon": _ICON_PATH,
        "script": _SCRIPT_PATH,
        "live": _LIVE,
        "sign_out": SIGN_OUT,
        "change_path": CHANGE,
        "other_language": _target(path, visit, lang=other),
        "refreshes": visit.refreshes,
        "refresh_s": _REFRESH_S,
        "here": _target(path, visit),
        "refresh_switch": _target(path, visit, refresh="off" if visit.refreshes else "on"),
    }


def _problem_frame(caller: TokenCaller | None, frame: View | None = None) -> View:
    """What else a page shows that says why there is no other: the menu, for who has a session."""
    return {"caller": caller, "has_footer": False, **(frame or {})}


def _visit(request: Request) -> Visit:
    """What a request prefers: by its query, else by its cookies, else by what the browser says."""
    query, cookies, preferences = request.query_params, request.cookies, dict[str, str]()
    if query.get("lang") in LANGUAGES:
        preferences[_LANGUAGE] = query["lang"]
    if query.get("refresh") in ("on", "off"):
        preferences[_REFRESH] = query["refresh"]
    chosen = {**cookies, **preferences}
    language = next((one for one in LANGUAGES if one == chosen.get(_LANGUAGE)), None)
    accepted = language_of(request)
    return Visit(request, WORDS[language or accepted], chosen.get(_REFRESH) == "on", preferences)


def _target(path: str, visit: Visit, **changes: str) -> str:
    """The path with the query of a request, without preferences, and with these changes."""
    others = [
        (name, value)
        for name, value in visit.request.query_params.multi_items()
        if name not in ("lang", "refresh")
    ]
    return link(path, *others, *changes.items())


def _own(target: str) -> str:
    """A path of this page to go to; the overview where it is none, as one of another site."""
    parts = urlsplit(target)
    paths = [screen.path for screen in SCREENS]
    if parts.scheme or parts.netloc or parts.path not in paths or not target.isascii():
        return "/"
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _pairs(body: bytes) -> list[tuple[str, str]]:
    """The fields of a form. Raises Problem."""
    try:
        return parse_qsl(body.decode(), max_num_fields=_FIELDS, strict_parsing=bool(body))
    except ValueError:
        raise Problem(400, "invalid_request", say("form_unreadable")) from None


async def _style(_request: Request) -> Response:
    return Response(_STYLE, headers=_KEPT, media_type="text/css")


async def _script(_request: Request) -> Response:
    return Response(_SCRIPT, headers=_KEPT, media_type="text/javascript")


async def _icon(_request: Request) -> Response:
    return Response(_ICON, headers=_KEPT, media_type="image/svg+xml")
