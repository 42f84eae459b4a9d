"""Questions that a person answers by clicks on the page alone, in both languages; the one about four more
nodes is in ``test_page_week``.
"""

from __future__ import annotations

import json

import pytest

from schedulemesh.api.nodes import GetDrainStatus
from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import ListTasks
from schedulemesh.domain.language import LANGUAGES
from schedulemesh.server.page.words import WORDS
from tests.runtime.composition import InThread
from tests.server.chromium import Chromium, chromium
from tests.server.local import Api
from tests.server.scenes import three_teams
from tests.server.work import ask

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def chrome():
    made = Chromium()
    yield made
    made.close()


class Person:
    """Somebody at the page, who reads one language and begins at the overview."""

    def __init__(self, chrome, api, language):
        self.words, self.api = WORDS[language], api
        self.tab = chrome.tab(language=language)
        session = api.client.post(
            "/sign-in", data={"token": api.token}, headers={"origin": api.url}
        )
        for name, value in session.cookies.items():
            self.tab.send("Network.setCookie", url=api.url, name=name, value=value, httpOnly=True)
        api.client.cookies.clear()
        self.tab.open(f"{api.url}/")

    def sees(self, *texts):
        """Whether all of this can be read."""
        text = self.tab.text()
        return all(one in text for one in texts)

    def click(self, text, within=""):
        """Follow a link, or press a button, the first one with this text; ``within``: of the article or the
        row of a table that has this heading or link.
        """
        place = json.dumps(within)
        named = (
            f"[...document.querySelectorAll('article, tr')].find(one => "
            f"[...one.querySelectorAll('h2, h3, a')].some(part => part.textContent.includes({place})))"
        )
        where = named if within else "document"
        found = (
            f"[...{where}.querySelectorAll('a, button')]"
            f".find(one => one.textContent.trim() === {json.dumps(text)})"
        )
        self.tab.load(lambda: self.tab.run(f"{found}.click()"))

    def do(self, action, within=""):
        """Press the button of an action."""
        self.click(self.words.text(f"do_{action}"), within)

    def go(self, screen):
        """Go to a screen by the menu."""
        self.click(self.words.text(screen))


@pytest.fixture(params=LANGUAGES)
def person(request, chrome, tmp_path):
    mesh = InThread(tmp_path / "j.sqlite")
    three_teams(mesh)
    api = Api(mesh, tmp_path / "home")
    made = Person(chrome, api, request.param)
    yield made
    assert made.tab.errors == []
    made.tab.close()
    api.close()
    mesh.close()


def test_what_is_asked_of_the_page_is_answered(person):
    words = person.words
    # Why does this task wait?
    person.go("queue")
    person.click("ablation-1")
    assert person.sees(words.code("insufficient_quota"), words.text("next_step"), "pretrain-0")
    # Who evicted this one, and what did it cost?
    person.go("evictions")
    person.click("detector")
    assert person.sees(words.text("last_eviction"), words.text("state_not_kept"))
    person.click("grasp")
    assert person.sees("robotics")
    # Which GPU is idle?
    person.go("nodes")
    person.tab.run("document.querySelector('main [name=show]').value = 'with_free'")
    person.click(words.text("filter"))
    assert person.sees("gpu-003", words.text("free_of", free="4", total="8"))
    assert not person.sees("gpu-000")
    # What does this team use?
    person.go("usage")
    assert person.sees("robotics", "vision")
    person.go("overview")
    assert person.sees(
        words.text("borrowed_from", pool="vision", amounts=words.amounts({"gpu": 4}))
    )


def test_what_is_to_be_done_is_done_on_the_page(person):
    mesh = person.api.mesh
    # Cancel mine.
    person.go("queue")
    person.click("mei", within="whole-node")
    person.click("whole-node")
    person.do("cancel")
    person.do("cancel")
    assert "whole-node" not in {row["task_id"] for row in ask(mesh, ListTasks()).rows}
    # Hold a pool.
    person.go("overview")
    person.do("drain_pool", within="vision")
    person.click(person.words.text("do_drain_pool"))
    # Drain a node.
    person.go("nodes")
    person.do("drain", within="gpu-003")
    person.do("drain")
    drained = {row["node_id"] or row["pool_name"] for row in ask(mesh, GetDrainStatus()).rows}
    assert drained == {"vision", f"{3:056x}"}
    # Raise a quota.
    person.go("overview")
    person.do("quota", within="robotics")
    person.tab.run("document.querySelector('main [name=\"quota.gpu\"]').value = '10'")
    person.click(person.words.text("show_effect"))
    person.do("quota")
    pools = {row["name"]: row["resources"] for row in ask(mesh, ListPools()).rows}
    assert pools["robotics"]["gpu"] == 10.0
    # Who changed the policy?
    person.go("policy")
    person.do("policy")
    person.tab.run("document.querySelector('main [name=\"policy.min_runtime\"]').value = '60'")
    person.click(person.words.text("show_effect"))
    assert person.sees("min_runtime", "60")
    person.do("policy")
    person.go("policy")
    assert person.sees("min_runtime", "local")
