"""What four more nodes would have brought last week, as a person asks it of the page, to the answer."""

from __future__ import annotations

import pytest

from schedulemesh.domain.language import LANGUAGES
from schedulemesh.server.page.words import WORDS
from schedulemesh.sim.rehearsal import Changes, open_history, rehearse
from tests.runtime.composition import InThread
from tests.server.chromium import Chromium, chromium
from tests.server.local import Api
from tests.server.past_week import past_week

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    """The path of the journal of a scheduler with a past, and what a rehearsal says of four nodes more."""
    folder = tmp_path_factory.mktemp("week") / "space"
    folder.mkdir()
    path = folder / "mesh.sqlite"
    past_week(path)
    return path, rehearse(open_history(str(path)), Changes(nodes=4))


@pytest.fixture(scope="module")
def served(week, tmp_path_factory):
    mesh = InThread(week[0], state_path=str(week[0].parent.parent))
    api = Api(mesh, tmp_path_factory.mktemp("home"))
    yield api
    api.close()
    mesh.close()


@pytest.fixture(scope="module")
def chrome():
    made = Chromium()
    yield made
    made.close()


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_four_more_nodes_would_have_brought_is_answered_on_the_page(
    week, served, chrome, language
):
    words, rehearsed = WORDS[language], week[1]
    tab = chrome.tab(language=language)
    session = served.client.post(
        "/sign-in", data={"token": served.token}, headers={"origin": served.url}
    )
    for name, value in session.cookies.items():
        tab.send("Network.setCookie", url=served.url, name=name, value=value, httpOnly=True)
    served.client.cookies.clear()
    tab.open(f"{served.url}/")
    # Another supervisor has written the history.
    restarted = {"en": "The supervisor was restarted.", "zh": "调度进程重启过。"}
    assert restarted[language] in tab.text()
    tab.click(words.text("rehearsal"))
    tab.fill("nodes", "+4")
    tab.click(words.text("rehearse"))
    while 'svg class="bar"' not in tab.html():
        # The page loads itself again until it has the answer.
        assert words.text("rehearsal_failed") not in tab.text()
        tab.next_load()
    text = tab.text()
    before, after = (part[""] for part in (rehearsed.recorded, rehearsed.rehearsed))
    assert after.waited_s.mean < before.waited_s.mean
    for shown in (before.waited_s.mean, after.waited_s.mean):
        assert words.span(shown) in text
    assert f"{before.preemptions} → {after.preemptions}" in text
    assert {"en": "would have waited less", "zh": "个任务的等待会缩短"}[language] in text
    widths = (
        "[...document.querySelectorAll('main svg.bar rect')].map(one => one.width.baseVal.value)"
    )
    assert len(drawn := tab.run(widths)) == 2 * 3
    assert drawn[1] < drawn[0]
    assert tab.errors == []
    tab.close()
