"""The page in a browser's words: every screen, in both languages, and who gets to see it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx
import pytest

from tests.server.work import filled

VOID = {"input", "link", "meta", "img", "br"}


class Document(HTMLParser):
    """The elements of a page, which have to be closed in their order; what CSP would not run is refused."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert tag not in ("script", "style", "iframe", "object")
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        self.elements.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


class Browser:
    """A client with cookies that sends the Origin with forms, as browsers do."""

    def __init__(self, api, language="en"):
        self.api = api
        self.client = httpx.Client(
            base_url=api.url,
            headers={"accept-language": language},
            trust_env=False,
            timeout=30,
        )

    def sign_in(self, token=None, following="/"):
        form = {"token": token or self.api.token, "next": following}
        return self.send("/sign-in", form)

    def send(self, path, form=None):
        return self.client.post(path, data=form or {}, headers={"origin": self.api.url})

    def get(self, path, status=200):
        """The document at a path, which has this status."""
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "script-src" not in (policy := answer.headers["content-security-policy"])
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        return Document(answer.text)


@pytest.fixture
def browser(api):
    made = Browser(api)
    yield made
    made.client.close()


def test_without_a_session_there_is_a_page_to_sign_in(browser):
    document = browser.get("/", 401)
    assert "Sign in" in document.words
    assert {"action": "/sign-in", "method": "post", "class": "sign-in"} in document.all("form")
    assert browser.api.gateway.asked == []


def test_the_overview_shows_pools_and_what_waits(browser):
    filled(browser.api.mesh)
    answer = browser.sign_in()
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    document = browser.get("/")
    assert "Longest wait" in document.words
    assert "mesh" in document.words
