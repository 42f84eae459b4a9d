"""The screens of the history: what ran when and where, and what was used."""

from __future__ import annotations

import asyncio
import csv
import io
import re

import pytest
from starlette.datastructures import QueryParams

from schedulemesh.api.history import QueryHistory, QueryUsage
from schedulemesh.api.pools import ListBudgets, ResizePool
from schedulemesh.domain.budgets import parse_budget, parse_owner_budgets
from schedulemesh.server.page import usage as usage_screen
from schedulemesh.server.page.colors import colors_of
from schedulemesh.server.page.periods import SPANS, Period, period
from schedulemesh.server.page.timeline import timeline_picture
from schedulemesh.server.page.usage import FIGURES, usage_picture
from tests.server.scenes import submit, three_teams
from tests.server.test_page import Browser
from tests.server.work import ask

NOW = 1_800_000_000.0


@pytest.fixture
def browser(api):
    three_teams(api.mesh)
    # Answered when it is written.
    ask(api.mesh, QueryHistory(limit=1))
    made = Browser(api)
    made.sign_in()
    yield made
    made.client.close()


def attempt(task_id, begin, end, cursor, **more):
    row = {"task_id": task_id, "pool_name": "p", "cursor": cursor, "node_ids": ["n"]}
    times = {"admitted_at": begin, "started_at": begin, "ended_at": end, "evicted_at": None}
    return {**row, **times, "by_task": "", **more}


def test_attempts_are_bars_in_time_and_those_that_overlap_are_one_below_the_other():
    shown = Period("1h", NOW - 3600, NOW, is_current=True)
    rows = [
        attempt("a", NOW - 7200, NOW - 1800, 1),
        attempt("b", NOW - 2700, None, 2),
        attempt("c", NOW - 900, NOW, 3),
    ]
    picture = timeline_picture({"n": rows}, shown, {"p": 0})
    (band,) = picture.bands
    a, b, c = band.bars
    left, width = picture.left, picture.width - picture.left
    assert (a.x, a.x + a.width) == (left, left + width / 2)
    assert (b.x, b.x + b.width) == pytest.approx((left + width / 4, picture.width), abs=0.2)
    assert a.y == c.y < b.y
    assert band.height == 2 * (b.y - a.y)


def test_an_eviction_is_an_arrow_from_the_victim_to_the_evictor():
    shown = Period("1h", NOW - 3600, NOW, is_current=True)
    evicted_at = NOW - 1800
    rows = {
        "n": [attempt("low", NOW - 3600, evicted_at, 1, by_task="high", evicted_at=evicted_at)],
        # The first attempt of the evictor ended before.
        "m": [
            attempt("high", NOW - 3500, NOW - 3000, 2),
            attempt("high", NOW - 1700, None, 3),
        ],
    }
    picture = timeline_picture(rows, shown, {"p": 0})
    (arrow,) = picture.arrows
    low, high = picture.bands[0].bars[0], picture.bands[1].bars[1]
    assert (arrow.x1, arrow.x2, arrow.title) == (low.x + low.width, high.x, "low → high")
    assert low.y < arrow.y1 < high.y < arrow.y2


def test_the_timeline_names_nodes_and_tasks_and_links_to_them(browser):
    document = browser.get("/timeline?span=1h")
    assert "gpu-001" in document.words
    assert "pretrain-0 · language · running" in document.words
    assert "/task?id=pretrain-0" in [a["href"] for a in document.all("a")]
    assert [line for line in document.all("line") if line.get("class") == "arrow"]
    assert "vision" in browser.get("/timeline?span=1h&by=pool").words
    only = browser.get("/timeline?span=1h&owner=ada").words
    assert "simulate" in only
    assert "pretrain-0" not in only


@pytest.mark.parametrize("span", SPANS)
def test_periods_from_an_hour_to_a_month_have_few_marks_in_order(span):
    shown = period(QueryParams([("span", span)]), NOW, "24h")
    marks = [at for at, _ in shown.marks()]
    assert shown.until - shown.since == SPANS[span]
    assert 3 <= len(marks) <= 9
    assert sorted(marks) == marks
    assert shown.since < marks[0] <= marks[-1] < shown.until


@pytest.mark.parametrize(
    "query", ["span=2h", "until=x", "until=-1", "until=1e3", "page=0", "span=%00"]
)
def test_what_is_no_period_is_said(browser, query):
    browser.get(f"/timeline?{query}", 400)


def test_a_period_of_the_past_leads_on(browser):
    document = browser.get("/timeline?span=1h")
    (earlier,) = [a["href"] for a in document.all("a") if "until=" in a["href"]]
    past = browser.get(earlier)
    assert "Nothing ran in this time" in past.words
    assert "Earlier Later" in past.words
    assert period(QueryParams([("until", "9" * 11)]), NOW, "1h").is_current


def test_usage_is_shown_by_pool_owner_and_label(browser):
    for by, name in (("pool", "language"), ("owner", "lin"), ("label", "team=lin")):
        document = browser.get(f"/usage?by={by}&span=24h")
        assert name in document.words
        assert "Spent at" not in document.words  # there are no budgets
        rows = [r for r in document.all("td") if r.get("data-label")]
        assert rows
    assert "team=lin" not in browser.get("/usage?by=label&label_key=other").words
    browser.get("/usage?by=nothing", 400)


def color_beside(html, name):
    """The colour of the dot before a name."""
    return set(re.findall(rf'class="dot (color-\d)[^"]*"></i>(?:<a [^>]*>)?{name}', html))


def test_a_pool_has_one_colour_on_every_screen(browser):
    paths = ("/usage?span=24h", "/timeline?span=1h", "/timeline?span=1h&owner=ada")
    html = [browser.client.get(path).text for path in paths]
    on_nodes = browser.client.get("/nodes").text
    seen = set()
    for pool in ("vision", "language", "robotics"):
        colors = [color_beside(one, pool) for one in html]
        assert len(colors[0]) == 1, pool
        assert colors[1] in (colors[0], set()), pool
        assert colors[2] in (colors[0], set()), pool
        held = re.findall(
            rf'class="dot (color-\d)[^"]*"></i><a class="name"[^>]*>[^<]*</a> '
            rf'<span class="muted"><a href="/running\?pool_name={pool}"',
            on_nodes,
        )
        assert set(held) == colors[0], pool
        seen |= colors[0]
    assert len(seen) == 3


def test_the_colour_of_a_pool_follows_from_its_name():
    names = [f"team-{number}" for number in range(8)]
    colors = colors_of(names)
    assert sorted(colors.values()) == list(range(8))
    # What comes later, and what has been, takes no colour away.
    more = colors_of([*names, "later", "last"], ["gone", names[0]])
    assert colors.items() <= more.items()
    assert more["gone"] == colors_of(["gone"])["gone"] == colors_of([], ["gone"])["gone"]
    assert colors_of(names[:3]).items() <= colors.items()


class Reader:
    """Answers with the use of three owners, one of whom is nobody, who have all only waited."""

    async def now(self):
        return NOW

    async def facts(self, call):
        assert isinstance(call, QueryUsage)
        rows = [{"owner": owner, **dict.fromkeys(FIGURES, 0.0)} for owner in ("lin", None, "ada")]
        return {"usage": rows}


def test_usage_by_owner_has_tasks_of_no_owner():
    query = QueryParams([("by", "owner")])
    _, *rows = csv.reader(io.StringIO(asyncio.run(usage_screen.usage_csv(Reader(), query))))
    assert [row[0] for row in rows] == ["", "ada", "lin"]


def test_budgets_are_on_the_screen_of_usage_where_there_are_any(api, browser):
    budgets = {
        "budget": parse_budget({"gpu_hours": 500, "period": "week"}),
        "owner_budgets": parse_owner_budgets({"lin": {"gpu_hours": 1e-9}}),
    }
    ask(api.mesh, ResizePool(name="language", **budgets))
    assert len(ask(api.mesh, ListBudgets()).rows) == 2
    words = browser.get("/usage").words
    assert "Spent at" in words
    assert "500.0" in words


def test_usage_is_a_file_that_no_spreadsheet_runs(api, browser):
    submit(api.mesh, "cheat", "robotics", gpu=1, owner="=cmd|'/c calc'!A1", priority=9.0)
    ask(api.mesh, QueryHistory(limit=1))
    submit(api.mesh, "cheat-2", "robotics", gpu=1, owner="a;=1+1", priority=9.0)
    ask(api.mesh, QueryHistory(limit=1))
    answer = browser.client.get("/usage.csv?by=owner&span=24h")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    header, *rows = csv.reader(io.StringIO(answer.text))
    assert header == ["owner", *FIGURES]
    assert "lin" in {row[0] for row in rows}
    assert not [row for row in rows if row[0].startswith("=")]
    cells = [cell for row in csv.reader(io.StringIO(answer.text), delimiter=";") for cell in row]
    assert not [cell for cell in cells if cell.startswith("=")]
    browser.client.cookies.clear()
    assert browser.client.get("/usage.csv").status_code == 401


def test_columns_of_usage_are_as_high_as_what_was_used():
    shown = Period("24h", NOW - 86_400, NOW, is_current=True)
    parts = [[{"pool": "a", "gpu_hours": 2.0}, {"pool": "b", "gpu_hours": 6.0}], []]
    picture = usage_picture(parts, shown, "pool", {"b": "color-3", "a": "color-1"})
    b, a = picture.parts
    assert (b.style, a.style) == ("color-3", "color-1")
    assert (b.height, a.height) == (120.0, 40.0)
    assert (b.y, a.y) == (40.0, 0.0)
    assert picture.most == 8.0
    assert usage_picture([[], []], shown, "pool", {}).parts == []


def test_owners_beyond_the_last_colour_share_it():
    styles = usage_screen._styles([f"user-{number}" for number in range(30)], "owner", [])
    assert list(styles.values())[:2] == ["color-0", "color-1"]
    assert styles["user-29"] == styles["user-7"] == "color-7"
