"""The page in a real Chromium: what is seen, read, typed and loaded, and what does not run."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from schedulemesh.api.pools import EnsurePool
from schedulemesh.domain.resources import parse_resources
from schedulemesh.server.page.words import WORDS
from tests.runtime.composition import InThread
from tests.runtime.fake_backend import FakeBackend
from tests.server.chromium import Chromium, chromium
from tests.server.local import Api
from tests.server.scenes import crowded, nodes, observe, submit, three_teams
from tests.server.test_page import EVIL, SCREENS
from tests.server.work import ask

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium (Debian: apt-get install chromium)"
)

PATHS = (
    *SCREENS,
    "/audit",
    "/task?id=whole-node",
    "/task?id=pretrain-0",
    "/array?id=sweep",
    "/change?do=cancel&id=pretrain-0",
    "/change?do=priority&id=ablation-1&priority=1000",
    "/change?do=policy&id=queue",
    "/change?do=quota&id=vision",
    "/nothing",
)
LANGUAGES, SCHEMES, WIDTHS = ("en", "zh"), ("light", "dark"), (1280, 390)
LOOKS = [(one, scheme, width) for one in LANGUAGES for scheme in SCHEMES for width in WIDTHS]
#: What a browser says of a page that is answered with another status than 200, which the test asks for.
ASKED_FOR = ("status of 404", "status of 401")


@pytest.fixture(scope="module")
def chrome():
    made = Chromium()
    yield made
    made.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The page of three teams with an array."""

    def scene(mesh):
        three_teams(mesh)
        submit(mesh, "sweep", "robotics", owner="ada", gpu=1, array="0-199%2", run="go")
        submit(mesh, "report", "robotics", owner="ada", gpu=1, after=("any:sweep",))

    yield from served_scene(tmp_path_factory.mktemp("page"), scene)


def served_scene(folder, scene):
    """The API of a scheduler with this scene, in which jobs never end."""

    async def run_for_ever(self, handle, order):
        await asyncio.get_running_loop().create_future()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeBackend, "run_task", run_for_ever)
        mesh = InThread(folder / "j.sqlite")
        scene(mesh)
        api = Api(mesh, folder / "home")
        yield api
        api.close()
        mesh.close()


@pytest.fixture(scope="module")
def large_cluster(tmp_path_factory):
    """The page of more nodes and pools than are shown unfolded, with windows, topologies and an array."""
    yield from served_scene(tmp_path_factory.mktemp("large"), crowded)


@pytest.fixture
def tabs(chrome, served):
    """Opens tabs that are signed in, with the token of the server's machine unless another one is given."""
    yield from opened_tabs(chrome, served)


@pytest.fixture
def large_tabs(chrome, large_cluster):
    """The same for the large cluster."""
    yield from opened_tabs(chrome, large_cluster)


def opened_tabs(chrome, api):
    opened = []

    def made(token=None, **how):
        tab = chrome.tab(**how)
        opened.append(tab)
        session = api.client.post(
            "/sign-in", data={"token": token or api.token}, headers={"origin": api.url}
        )
        for name, value in session.cookies.items():
            tab.send("Network.setCookie", url=api.url, name=name, value=value, httpOnly=True)
        api.client.cookies.clear()
        return tab

    yield made
    for tab in opened:
        tab.close()


@pytest.mark.parametrize(("language", "scheme", "width"), LOOKS)
def test_every_screen_fits_and_reports_no_error(served, tabs, language, scheme, width):
    tab = tabs(language=language, scheme=scheme, width=width)
    for path in PATHS:
        tab.open(f"{served.url}{path}")
        assert tab.width_of_content() <= width, path
        assert [one for one in tab.errors if not any(map(one.__contains__, ASKED_FOR))] == [], path
        assert tab.run("document.documentElement.lang") == {"en": "en", "zh": "zh-CN"}[language]
        back = tab.run("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(246, 247, 249)", "dark": "rgb(17, 21, 27)"}[scheme]


#: Tables and charts of which a part is seen only after scrolling to the side.
CUT = (
    "[...document.querySelectorAll('main table.stacked, main .chart')]"
    ".map(one => one.parentElement).filter(one => one.scrollWidth > one.clientWidth).length"
)


@pytest.mark.parametrize("language", LANGUAGES)
def test_on_a_phone_no_table_and_no_chart_is_cut(served, tabs, language):
    tab = tabs(language=language, width=390)
    for path in (*PATHS, "/task?id=notebook", "/usage?span=30d", "/usage?span=24h"):
        tab.open(f"{served.url}{path}")
        assert tab.run(CUT) == 0, path


@pytest.mark.parametrize("width", WIDTHS)
def test_the_newest_hours_of_usage_are_seen_without_scrolling(served, tabs, width):
    tab = tabs(width=width)
    tab.open(f"{served.url}/usage?span=7d")
    places = "[...document.querySelectorAll('.chart rect')].map(one => one.getBoundingClientRect())"
    rights = tab.run(f"{places}.map(one => one.right)")
    assert rights
    assert 0.9 * width < max(rights) <= width
    heights = tab.run(
        "[...document.querySelectorAll('.chart text')].map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) > 10


def test_on_a_phone_the_menu_is_folded_and_opened_by_keys(served, tabs):
    tab = tabs(width=390)
    for path in PATHS:
        tab.open(f"{served.url}{path}")
        assert tab.run("document.querySelector('header').offsetHeight") <= 60, path
    tab.open(f"{served.url}/usage")
    until(tab, "document.activeElement.getAttribute('popovertarget') === 'menu'")
    assert tab.run("document.querySelector('nav').offsetHeight") == 0
    tab.enter()
    until(tab, "document.activeElement.getAttribute('href') === '/queue'")
    tab.load(tab.enter)
    assert tab.run("location.pathname") == "/queue"


def test_on_a_wide_screen_the_menu_is_open(served, tabs):
    tab = tabs()
    tab.open(served.url)
    assert tab.run("document.querySelector('nav').offsetHeight") > 0
    assert tab.run("document.querySelector('[popovertarget]').offsetHeight") == 0


@pytest.mark.parametrize("path", PATHS)
def test_every_screen_can_be_read_without_scripts(served, tabs, path):
    tab = tabs(scripts=False)
    tab.open(f"{served.url}{path}")
    html = tab.html()
    assert "<h1>" in html
    assert ("Refresh every" in html) == (path != "/nothing")
    assert tab.width_of_content() <= tab.width


def test_a_session_begins_and_a_task_is_held_by_keys_alone(chrome, served):
    tab = chrome.tab()
    tab.open(f"{served.url}/queue?pool_name=vision")
    until(tab, "document.activeElement.name === 'token'")
    tab.send("Input.insertText", text=served.token)
    tab.load(tab.enter)
    assert tab.run("location.pathname + location.search") == "/queue?pool_name=vision"
    tab.tabulator()
    assert tab.run("document.activeElement.className") == "skip"
    tab.enter()
    until(tab, "document.activeElement.value === 'whole-node'")
    tab.space()
    assert tab.run("document.activeElement.checked")
    until(tab, "document.activeElement.value === 'hold'")
    tab.load(tab.enter)
    assert "whole-node" in tab.text()
    until(tab, "document.activeElement.className === 'primary'")
    tab.load(tab.enter)
    assert "Held: whole-node" in tab.text()
    assert all("status of 401" in error for error in tab.errors)
    tab.close()


def until(tab, condition, most=120):
    """Press the tabulator until an element has the focus."""
    for _ in range(most):
        if tab.run(condition):
            return
        tab.tabulator()
    raise AssertionError(f"the keys do not reach {condition}")


def axe():
    """The script of axe-core, from a package that has it; None: it is not installed."""
    package = find_spec("axe_playwright_python")
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.rglob("axe.min.js"), None)


@pytest.mark.skipif(
    axe() is None, reason="axe is not installed (pip install axe-playwright-python)"
)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_no_violation(served, tabs, scheme, width):
    tab = tabs(scheme=scheme, width=width)
    tab.send("Page.setBypassCSP", enabled=True)
    for path in PATHS:
        tab.open(f"{served.url}{path}")
        assert violations(tab) == [], path


@pytest.mark.skipif(
    axe() is None, reason="axe is not installed (pip install axe-playwright-python)"
)
@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
def test_axe_finds_no_violation_in_a_large_cluster(large_cluster, large_tabs, scheme, width):
    tab = large_tabs(scheme=scheme, width=width, language="zh")
    tab.send("Page.setBypassCSP", enabled=True)
    for path in LARGE_PATHS:
        tab.open(f"{large_cluster.url}{path}")
        assert violations(tab) == [], path
        tab.run(OPEN_FOLDS)
        assert violations(tab) == [], path


def violations(tab):
    """What axe finds on a page, and where."""
    tab.run(f"{axe().read_text(encoding='utf-8')}; undefined")
    return tab.run(
        "axe.run().then(result => result.violations.map("
        "one => [one.id, one.nodes.map(node => node.target.join(' '))]))"
    )


#: Screens of the large cluster: folds, windows, topologies, an array; node 30 is in a window now.
LARGE_PATHS = (
    "/",
    "/nodes",
    "/nodes?name=gpu-012",
    "/nodes?show=closed_only",
    "/queue",
    "/running?owner=lin",
    "/task?id=in-one-rack",
    "/task?id=too-large",
    "/array?id=sweep",
    "/timeline?by=pool",
    "/policy",
    "/change?do=priority&id=too-large&priority=9",
    f"/change?do=uncordon&id={30:056x}",
)
OPEN_FOLDS = "document.querySelectorAll('details').forEach(one => { one.open = true; })"


@pytest.mark.parametrize(("language", "scheme", "width"), LOOKS)
def test_screens_of_a_large_cluster_fit_with_their_folds_open(
    large_cluster, large_tabs, language, scheme, width
):
    tab = large_tabs(language=language, scheme=scheme, width=width)
    for path in LARGE_PATHS:
        tab.open(f"{large_cluster.url}{path}")
        assert tab.width_of_content() <= width, path
        tab.run(OPEN_FOLDS)
        assert tab.width_of_content() <= width, path
        assert tab.errors == [], path


def test_windows_and_topologies_are_read_in_both_languages(large_cluster, large_tabs):
    english, chinese = large_tabs(), large_tabs(language="zh")
    for path, texts in (
        ("/nodes?name=gpu-012", ("b0/r3", "maintenance from", "维护：firmware")),
        ("/nodes?name=gpu-030", ("b1/r7", "maintenance", "维护中")),
        ("/task?id=too-large", ("gpu 40", "no rack has", "没有一个 rack")),
    ):
        for tab, text in ((english, texts[1]), (chinese, texts[2])):
            tab.open(f"{large_cluster.url}{path}")
            assert texts[0] in tab.text(), path
            assert text in tab.text(), path


#: Whether the fold of a node is open.
FOLD_OF = (
    "[...document.querySelectorAll('article.node')]"
    ".find(one => one.textContent.includes('{}')).querySelector('details').open"
)


def test_a_folded_node_is_unfolded_and_drained_by_keys_alone(large_cluster, large_tabs):
    tab = large_tabs()
    tab.open(f"{large_cluster.url}/nodes")
    node = "document.activeElement.closest('article')?.textContent.includes('gpu-002')"
    until(tab, f"document.activeElement.tagName === 'SUMMARY' && {node}")
    tab.enter()
    assert tab.run(FOLD_OF.format("gpu-002"))
    until(tab, f"document.activeElement.value === 'drain' && {node}")
    tab.load(tab.enter)
    assert "gpu-002" in tab.text()
    until(tab, "document.activeElement.className === 'primary'")
    tab.load(tab.enter)
    assert "Node gpu-002 is being drained" in tab.text()


def test_folds_and_the_focus_stay_where_nodes_come_before_them(large_cluster, large_tabs):
    tab = large_tabs()
    tab.open(f"{large_cluster.url}/nodes")
    node = "document.activeElement.closest('article')?.textContent.includes('gpu-004')"
    until(tab, f"document.activeElement.tagName === 'SUMMARY' && {node}")
    tab.enter()
    (first,) = nodes(1)
    joined = msgspec.structs.replace(first, node_id="f" * 56, host="gpu-0005")
    observe(large_cluster.mesh, [*large_cluster.mesh.backend.free, joined])
    assert tab.run(appears("gpu-0005"))
    assert tab.run(FOLD_OF.format("gpu-004"))
    assert tab.run("document.querySelectorAll('main details[open]').length") == 1
    assert tab.run(f"document.activeElement.tagName === 'SUMMARY' && {node}")


def test_a_viewer_sees_no_button_and_a_submitter_those_of_its_own_tasks(served, tabs):
    tokens = (
        {"name": "sees", "role": "viewer"},
        {"name": "sub", "role": "submitter", "owner": "lin"},
    )
    viewer, submitter = (tabs(served.send("POST", "/tokens", token)["token"]) for token in tokens)
    paths = (*SCREENS, "/task?id=ablation-2", "/task?id=whole-node", "/array?id=sweep")
    buttons = "document.querySelectorAll('[name=do], [name=id][type=checkbox], .confirm').length"
    for path in paths:
        viewer.open(f"{served.url}{path}")
        assert viewer.run(buttons) == 0, path
    for path, count in (
        ("/task?id=ablation-2", 3),
        ("/task?id=whole-node", 0),
        ("/array?id=sweep", 0),
    ):
        submitter.open(f"{served.url}{path}")
        assert submitter.run(buttons) == count, path


def test_an_open_page_shows_changes_and_keeps_what_was_entered(served, tabs):
    tab = tabs()
    tab.open(f"{served.url}/queue?pool_name=robotics")
    tab.run("document.querySelector('input[value=report]').checked = true")
    tab.run("document.querySelector('input[name=owner]').value = 'entered'")
    submit(served.mesh, "seen-live", "robotics", gpu=4, priority=0.1, owner="ada")
    assert tab.run(appears("seen-live"))
    assert tab.run("document.querySelector('input[value=report]').checked")
    assert tab.run("document.querySelector('input[name=owner]').value") == "entered"


def test_an_open_page_says_that_the_supervisor_is_away_and_goes_on(served, tabs, monkeypatch):
    tab = tabs()
    tab.open(f"{served.url}/queue")
    monkeypatch.setattr(served.gateway, "cut_off", True)
    assert tab.run(is_shown("away", shown=True))
    monkeypatch.setattr(served.gateway, "cut_off", False)
    assert tab.run(is_shown("away", shown=False))
    assert "whole-node" in tab.text()


#: What is clicked in turn from the overview on, what is entered, and what is read then.
QUESTIONS = (
    ("why_waits", ["queue", "'whole-node"], {}, "who_holds"),
    ("who_evicted", ["evictions"], {}, "'grasp"),
    ("idle_gpu", ["nodes", "filter"], {"show": "with_free"}, "'gpu-003"),
    ("team", ["usage", "filter"], {"by": "owner"}, "'mei"),
    (
        "cancel_mine",
        ["running_tasks", "filter", "select_all", "do_cancel"],
        {"owner": "lin"},
        "will_cancel",
    ),
    ("hold_pool", ["do_drain_pool"], {}, "will_drain_pool"),
    ("drain_node", ["nodes", "do_drain"], {}, "will_drain"),
    ("raise_quota", ["do_quota", "show_effect"], {"'quota.gpu'": "16"}, "'16"),
    ("more_nodes", ["rehearsal"], {}, "more_nodes"),
    ("who_changed", ["policy"], {}, "changes"),
)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("steps", "entered", "answer"), [q[1:] for q in QUESTIONS], ids=[q[0] for q in QUESTIONS]
)
def test_questions_are_answered_by_clicks_alone(served, tabs, language, steps, entered, answer):
    def text(key):
        return key[1:] if key.startswith("'") else WORDS[language].text(key)

    tab = tabs(language=language)
    tab.open(served.url)
    for step in steps:
        for name, value in entered.items() if step in ("filter", "show_effect") else ():
            tab.fill(name, value)
        tab.click(text(step))
    assert text(answer) in tab.text()


def appears(text):
    """A promise that is kept when a text can be read."""
    return promise(f"document.body.innerText.includes({json.dumps(text)})", "document.body")


def is_shown(name, *, shown):
    """A promise that is kept when an element is shown, or hidden."""
    here = f"document.getElementById({json.dumps(name)})"
    return promise(f"{here}.hidden === {str(not shown).lower()}", here)


def promise(condition, element):
    watched = "{childList: true, subtree: true, attributes: true}"
    return (
        f"new Promise(kept => {{ const look = () => {{ if ({condition}) kept(true); }}; "
        f"new MutationObserver(look).observe({element}, {watched}); look(); }})"
    )


def test_what_users_write_runs_nothing(chrome, tmp_path):
    evil = f"{EVIL}<img src=x onerror=alert(1)>"
    mesh = InThread(tmp_path / "j.sqlite")
    api = Api(mesh, tmp_path / "home")
    try:
        three_teams(mesh)
        amounts = parse_resources({"cpu": 9, "memory": 64_000, "gpu": 1})
        ask(mesh, EnsurePool(name=evil, resources=amounts))
        first = msgspec.structs.replace(mesh.backend.free[0], host=evil)
        observe(mesh, [first, *mesh.backend.free[1:]])
        for name in (evil, f"{evil}2"):
            submit(mesh, name, evil, owner=evil, labels={evil: evil}, gpu=1)
        tab = chrome.tab()
        session = api.client.post(
            "/sign-in", data={"token": api.token}, headers={"origin": api.url}
        )
        for name, value in session.cookies.items():
            tab.send("Network.setCookie", url=api.url, name=name, value=value, httpOnly=True)
        name = quote(evil, safe="")
        for path in (
            *SCREENS,
            *(
                f"/task?id={name}",
                f"/task?id={name}2",
                f"/queue?owner={name}",
                f"/nodes?name={name}",
            ),
            *(
                f"/array?id={name}",
                f"/change?do=cancel&id={name}",
                f"/queue?reason={name}",
                f"/{name}",
            ),
        ):
            tab.open(f"{api.url}{path}")
            assert tab.run("document.scripts.length") <= 1
            assert tab.run("[...document.images].every(one => one.alt === '' && !one.onerror)")
            assert tab.dialogs == []
            assert not [one for one in tab.errors if "Content Security Policy" in one]
        tab.close()
    finally:
        api.close()
        mesh.close()
