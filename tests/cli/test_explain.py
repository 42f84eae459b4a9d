"""``schedulemesh explain``: what a person reads, kept word for word under ``stories/``.

Run with REWRITE_STORIES=1 to write them anew; then read what changed before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from schedulemesh.cli.explain import WIDTH, Line, _wrapped, text_of
from schedulemesh.domain.language import LANGUAGES
from schedulemesh.domain.payloads import GangPayload
from schedulemesh.domain.windows import MaintenanceWindow
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.protocol.public import explained
from schedulemesh.protocol.wording import translated
from tests.docs.documents import ROOT
from tests.engine.builders import Mesh, amount, node, pool

FOLDER = Path(__file__).parent / "stories"
SUFFIXES = {"en": "", "zh": ".zh"}


def short_of_quota():
    given = Mesh(pool("research", gpu=8), nodes=[node("gpu-1", gpu=8)])
    for name, gpu in (("llama-sft", 4), ("reward-model", 2), ("eval-17", 1), ("eval-18", 1)):
        given.run(name, "research", 5.0, gpu=gpu, duration=1800.0 * gpu)
    for name in ("first", "second"):
        given.queue(name, "research", 5.5, gpu=2)
    given.queue("ppo-31", "research", 5.0, gpu=4)
    given.now += 720
    return given, "ppo-31"


def held_behind_a_cordoned_node_and_other_ray_work():
    given = Mesh(
        pool("research", gpu=16),
        nodes=[node("gpu-1", gpu=8, others=amount(gpu=6)), node("gpu-2", gpu=8)],
    )
    given.cordon("gpu-2")
    given.queue("ppo-31", "research", 5.0, gpu=8)
    given.change("ppo-31", held=True)
    given.now += 90
    return given, "ppo-31"


def before_a_maintenance_window():
    given = Mesh(pool("research", gpu=16), nodes=[node("gpu-1", gpu=8), node("gpu-2", gpu=8)])
    window = MaintenanceWindow(name="driver-update", start=given.now + 6000.0, duration_s=14_400.0)
    given.handle(s.WindowRequested(window=window))
    given.queue("train-7", "research", 5.0, gpu=8, duration=14_400.0)
    given.tick(180.0)
    return given, "train-7"


def running_before_a_maintenance_window():
    given = Mesh(pool("research", gpu=8), nodes=[node("gpu-1", gpu=8)])
    window = MaintenanceWindow(name="driver-update", start=given.now + 9000.0, duration_s=14_400.0)
    given.handle(s.WindowRequested(window=window))
    given.run("ppo-31", "research", gpu=8)
    given.now += 600.0
    return given, "ppo-31"


def behind_the_head_of_a_strict_pool():
    strict = msgspec.structs.replace(pool("research", gpu=8), queueing="strict")
    given = Mesh(strict, nodes=[node("gpu-1", gpu=8)])
    given.run("llama-sft", "research", gpu=4)
    for number in range(8):
        given.queue(f"large-{number}", "research", gpu=8)
    given.queue("small", "research", gpu=1)
    return given, "small"


def a_task_runs():
    given = Mesh(pool("research", gpu=8), nodes=[node("gpu-1", gpu=8)])
    given.run("llama-sft", "research", gpu=4, duration=7200.0)
    given.now += 3661
    return given, "llama-sft"


def a_victim_has_returned_to_the_queue():
    given = Mesh(pool("research", gpu=8), pool("prod", gpu=8), nodes=[node("gpu-1", gpu=8)])
    given.run("ppo-31", "research", 1.0, gpu=8, on_preempted="requeue", class_key="k")
    given.now += 3000
    given.submit("serve", "prod", 10.0, gpu=8)
    given.now += 4
    given.leave("ppo-31", saved=True)
    given.report("serve")
    given.now += 60
    return given, "ppo-31"


def a_victim_was_dropped():
    given = Mesh(pool("research", gpu=8), nodes=[node("gpu-1", gpu=8)])
    given.run("ppo-31", "research", 1.0, gpu=8, class_key="k")
    given.now += 30
    given.submit("serve", "research", 10.0, gpu=8)
    given.leave("ppo-31")
    given.report("serve")
    given.now += 60
    return given, "ppo-31"


def earlier_runs_say_when_it_starts():
    given = Mesh(pool("research", gpu=8), nodes=[node("gpu-1", gpu=8)])
    for number, minutes in enumerate((50, 60, 61, 65, 90)):
        given.run(f"sft-{number}", "research", gpu=8, owner="alice")
        given.now += 60.0 * minutes
        given.complete(f"sft-{number}")
    given.run("sft-5", "research", gpu=8, owner="alice")
    given.now += 720
    given.queue("sft-6", "research", gpu=8, owner="alice")
    given.now += 60
    return given, "sft-6"


def _limited(**limits):
    given = Mesh(
        msgspec.structs.replace(pool("research", gpu=8), **limits),
        nodes=[node("gpu-1", gpu=8)],
        save_timeout=30.0,
        cancel_timeout=5.0,
    )
    given.run("train-1", "research", gpu=8, class_key="k", limits={"idle_s": 1800.0})
    return given


def a_task_runs_within_its_time_limit():
    given = _limited(default_max_run_s=7200.0, max_run_s=86400.0)
    given.now += 4620
    return given, "train-1"


def the_gpus_of_a_task_are_idle():
    given = _limited()
    given.now += 1800
    given.handle(s.AgentsMeasured(unused=(("train-1", 0.0),)))
    given.now += 60
    return given, "train-1"


def it_starts_when_a_time_limit_has_ended_another():
    given = _limited(default_max_run_s=7200.0, max_run_s=14400.0)
    given.queue("next", "research", gpu=8, limits={"max_run_s": 10800.0})
    given.now += 4620
    return given, "next"


def a_task_is_ended_by_its_time_limit():
    given = _limited(default_max_run_s=7200.0)
    given.tick(7200)
    return given, "train-1"


def a_time_limit_has_ended_a_task():
    given = _limited(default_max_run_s=7200.0)
    given.tick(7200)
    given.leave("train-1", saved=True)
    given.now += 60
    return given, "train-1"


def idle_gpus_have_ended_a_task():
    given = _limited()
    for _ in range(2):
        given.now += 1800
        given.handle(s.AgentsMeasured(unused=(("train-1", 0.0),)))
    given.leave("train-1")
    return given, "train-1"


def no_rack_has_room():
    racks = (("gpu-1", "r1", 8), ("gpu-2", "r1", 8), ("gpu-3", "r3", 8), ("gpu-4", "r3", 4))
    given = Mesh(
        pool("research", gpu=64),
        nodes=[node(name, gpu=gpu, labels={"rack": rack}) for name, rack, gpu in racks],
        topology_levels=("rack",),
    )
    given.run("train-1", "research", gpu=8, node_id="gpu-1")
    members = {"bundles": [{"gpu": 4}] * 4, "payload": GangPayload(strategy="PACK")}
    given.queue("train-2", "research", topology="rack", **members)
    given.tick(60)
    return given, "train-2"


STORIES = (
    no_rack_has_room,
    a_task_runs_within_its_time_limit,
    before_a_maintenance_window,
    running_before_a_maintenance_window,
    the_gpus_of_a_task_are_idle,
    it_starts_when_a_time_limit_has_ended_another,
    a_task_is_ended_by_its_time_limit,
    a_time_limit_has_ended_a_task,
    idle_gpus_have_ended_a_task,
    earlier_runs_say_when_it_starts,
    short_of_quota,
    held_behind_a_cordoned_node_and_other_ray_work,
    behind_the_head_of_a_strict_pool,
    a_task_runs,
    a_victim_has_returned_to_the_queue,
    a_victim_was_dropped,
)


@pytest.mark.parametrize("width", range(40, 90, 7))
def test_a_number_stays_with_its_chinese_unit(width):
    text = "任务 a：排队中，已 12 天 3 小时，排第 3，共 14 个，被抢占 2 次，预计还剩 4 分钟 58 秒"
    lines = _wrapped(Line(text, "  ", "    "), width, "zh")
    assert [line for line in lines if re.search(r"\d$|^ *(?:天|小时|分钟|秒|个|次)", line)] == []
    assert "\u00a0" not in "".join(lines)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_person_reads(story, language):
    given, task_id = story()
    answer = translated(explained(given.engine.explain(task_id, given.now)), language)
    text = text_of(answer, given.now, WIDTH, language) + "\n"
    path = FOLDER / f"{story.__name__}{SUFFIXES[language]}.txt"
    if os.environ.get("REWRITE_STORIES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
    assert max(map(cell_len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("page", "story"),
    [
        ("queueing.md", "short_of_quota"),
        ("queueing.md", "a_victim_has_returned_to_the_queue"),
        ("estimates.md", "earlier_runs_say_when_it_starts"),
    ],
)
def test_a_page_shows_what_is_printed(page, story):
    guide = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert (FOLDER / f"{story}.txt").read_text(encoding="utf-8") in guide


def test_the_chinese_guide_shows_what_is_printed():
    guide = (ROOT / "docs" / "zh" / "queueing.md").read_text(encoding="utf-8")
    assert (FOLDER / "short_of_quota.zh.txt").read_text(encoding="utf-8") in guide


def test_chinese_lines_are_not_broken_apart_from_their_marks():
    for path in FOLDER.glob("*.zh.txt"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        assert not [line for line in lines if line[0] in "，。；：、）" or line[-1] in "（《"]


def test_names_as_long_as_they_may_be_stay_within_the_width():
    name = "n" * 253
    given = Mesh(pool(name, gpu=1), nodes=[node("gpu-1", gpu=8)])
    given.run("x" * 253, name, gpu=1)
    given.queue("y" * 253, name, gpu=1)
    given.queue(name, name, gpu=1)
    text = text_of(explained(given.engine.explain(name, given.now)), given.now)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_wide_characters_take_two_columns():
    name = "池" * 100
    given = Mesh(pool("研究", gpu=1), nodes=[node("gpu-1", gpu=8)])
    given.run("训练", "研究", gpu=1)
    given.queue(name, "研究", gpu=1)
    lines = text_of(explained(given.engine.explain(name, given.now)), given.now).splitlines()
    assert max(map(cell_len, lines)) <= WIDTH
    assert "".join(lines).replace(" ", "").startswith(f"task{name}(pool研究,")
