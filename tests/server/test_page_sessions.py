"""Who gets to see the page: sessions begin with a token and end with it; forms of other sites do nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.credentials import hash_of
from schedulemesh.server.page import sessions
from schedulemesh.server.page.app import Page
from schedulemesh.server.page.sessions import Sessions
from tests.server.test_page import Browser


@pytest.fixture
def browser(api):
    made = Browser(api)
    yield made
    made.client.close()


def issued(api, name, role="viewer"):
    """The secret of a new token."""
    return api.send("POST", "/tokens", {"name": name, "role": role})["token"]


def test_the_cookie_is_for_this_server_and_has_nothing_of_the_token(browser):
    answer = browser.sign_in()
    cookie = answer.headers["set-cookie"]
    port = httpx.URL(browser.api.url).port
    assert cookie.startswith(f"schedulemesh_session_{port}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert browser.api.token not in cookie
    assert hash_of(browser.api.token) not in cookie
    assert browser.get("/").all("nav")


@pytest.mark.parametrize("token", ["wrong", "sm_" + "x" * 43, "日本", "x" * 5_000, "\0"])
def test_a_wrong_token_begins_nothing(browser, token):
    answer = browser.sign_in(token)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert token not in answer.text
    browser.get("/", 401)
    assert browser.api.gateway.asked == []
    assert browser.api.server.failures == 1


def test_an_empty_form_begins_nothing(browser):
    assert browser.send("/sign-in").status_code == 403
    browser.get("/", 401)


@pytest.mark.parametrize("headers", [{}, {"origin": "http://evil.example"}, {"origin": "null"}])
@pytest.mark.parametrize("path", ["/sign-in", "/sign-out"])
def test_forms_of_other_sites_and_of_none_do_nothing(browser, headers, path):
    browser.sign_in()
    form = {"token": browser.api.token}
    answer = browser.client.post(path, data=form, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    browser.get("/")


def test_signing_out_ends_the_session_also_for_a_copy_of_the_cookie(browser):
    browser.sign_in()
    copy = dict(browser.client.cookies)
    answer = browser.send("/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    browser.client.cookies.update(copy)
    browser.get("/", 401)


def test_a_session_ends_at_once_with_its_token(browser):
    secret = issued(browser.api, "eve")
    browser.sign_in(secret)
    assert "eve" in browser.get("/").words
    browser.api.send("DELETE", "/tokens/eve")
    browser.get("/", 401)


def test_a_session_ends_when_its_token_gets_another_secret(browser):
    secret = issued(browser.api, "eve")
    browser.sign_in(secret)
    browser.api.send("POST", "/tokens/eve/rotate", {})
    browser.get("/", 401)


def test_signing_in_again_ends_the_session_before(browser):
    browser.sign_in()
    first = dict(browser.client.cookies)
    browser.sign_in()
    browser.client.cookies.update(first)
    browser.get("/", 401)


@pytest.mark.parametrize(
    "following",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "/api/v1/status",
        "/sign-out",
        "queue",
        "",
    ],
)
def test_signing_in_leads_to_screens_only(browser, following):
    assert browser.sign_in(following=following).headers["location"] == "/"


def test_signing_in_leads_to_what_was_asked_for(browser):
    document = browser.get("/?x=1&lang=en", 401)
    [following] = [i["value"] for i in document.all("input") if i["name"] == "next"]
    assert following == "/?x=1"
    assert browser.sign_in(following=following).headers["location"] == "/?x=1"


@pytest.mark.parametrize("path", ["/", "/sign-in", "/nothing"])
def test_other_hosts_get_no_page(browser, path):
    browser.sign_in()
    answer = browser.client.get(path, headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert "html" not in answer.headers["content-type"]


def test_a_cookie_is_no_token_for_calls(browser):
    browser.sign_in()
    assert browser.client.get("/api/v1/status").status_code == 401


def test_a_token_is_no_session(api):
    assert api.client.get("/").status_code == 401


@pytest.mark.parametrize("cookie", ["x", "=;=", 'a="', "schedulemesh_session_1=x", ";,"])
def test_cookies_of_others_are_no_session(browser, cookie):
    answer = browser.client.get("/", headers={"cookie": cookie})
    assert answer.status_code == 401


class Tokens:
    """Two tokens, of which each is accepted while it is not revoked."""

    def __init__(self):
        self.hashes = {hash_of("one"): "one", hash_of("two"): "two"}

    async def caller(self, token, address):
        return await self.holder(hash_of(token), address)

    async def holder(self, hashed, address):
        name = self.hashes.get(hashed)
        if name is None:
            return None
        spec = TokenSpec(name=name, role=Role.VIEWER, secret_hash=hashed)
        return TokenCaller(token=spec, address=address)

    def outdated(self):
        pass

    def refused(self):
        pass


def run(work):
    return asyncio.run(work)


def test_a_session_expires():
    now = [0.0]
    made = Sessions(Tokens(), lambda: now[0])
    session_id = run(made.begin("one", "a"))
    now[0] = sessions.LIFETIME_S - 1
    assert run(made.caller(session_id, "a")).token.name == "one"
    now[0] = sessions.LIFETIME_S
    assert run(made.caller(session_id, "a")) is None
    assert made._sessions == {}


def test_of_one_token_only_the_newest_sessions_stay():
    made = Sessions(Tokens())
    other = run(made.begin("two", "a"))
    ids = [run(made.begin("one", "a")) for _ in range(sessions.MAX_SESSIONS_OF_TOKEN + 2)]
    ended = [one for one in ids if run(made.caller(one, "a")) is None]
    assert ended == ids[:2]
    assert run(made.caller(other, "a")).token.name == "two"


def test_sessions_that_expired_are_forgotten_when_others_begin():
    now = [0.0]
    made = Sessions(Tokens(), lambda: now[0])
    run(made.begin("one", "a"))
    now[0] = sessions.LIFETIME_S + 1
    run(made.begin("two", "a"))
    assert len(made._sessions) == 1


def test_a_session_that_was_revoked_stays_ended():
    tokens = Tokens()
    made = Sessions(tokens)
    session_id = run(made.begin("one", "a"))
    hashes, tokens.hashes = tokens.hashes, {}
    assert run(made.caller(session_id, "a")) is None
    tokens.hashes = hashes
    assert run(made.caller(session_id, "a")) is None


def test_while_a_screen_is_drawn_others_are_served_and_of_one_token_one_is_drawn(
    api, browser, monkeypatch
):
    browser.sign_in()
    may_end, begun = threading.Event(), []
    drawn = Page._drawn

    def held(page, visit, template, *more):
        if template == "overview.html":
            begun.append(threading.current_thread())
            may_end.wait(30)
        return drawn(page, visit, template, *more)

    monkeypatch.setattr(Page, "_drawn", held)
    with ThreadPoolExecutor(3) as pool:
        screens = [pool.submit(browser.client.get, "/?refresh=off") for _ in range(3)]
        try:
            until(lambda: begun)
            until(lambda: len(api.server._server.server_state.tasks) == 3)
            assert api.client.get("/api/v1/status").status_code == 200
            assert len(begun) == 1
        finally:
            may_end.set()
        assert [screen.result(30).status_code for screen in screens] == [200] * 3
    assert len(begun) == 3
    assert api.thread not in begun


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)  # between two looks at what has no event
