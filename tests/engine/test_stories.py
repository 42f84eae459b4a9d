"""Stories that a person should read, kept word for word under ``stories/``.

Run with REWRITE_STORIES=1 to write them anew; then read what changed before it is committed.
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import msgspec
import pytest

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.resources import UNIT, Resources
from schedulemesh.domain.sentences import Sentence
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.engine.messages.facts import Devices, Share
from schedulemesh.engine.messages.outcomes import Candidate, Outcome
from tests.engine.builders import Mesh, differences, node, on, pool

FOLDER = Path(__file__).parent / "stories"

#: Long values that no story is about.
LEFT_OUT = {"at", "policy", "turned_away", "type"}


class Story(Mesh):
    """A mesh that writes down what happens."""

    def __init__(self, *pools, **how):
        self.lines: list[str] = []
        super().__init__(*pools, **how)

    def handle(self, stimulus):
        step = super().handle(stimulus)
        self.lines += ["", f"> {self.now - 1000:g} s: {told(stimulus)}"]
        self.lines += [f"  {told(fact)}" for fact in step.facts]
        self.lines += [f"  ! {told(order)}" for order in step.instructions]
        if step.outcome is not None:
            self.lines.append(f"  = {told(step.outcome)}")
        return step

    def says(self, words):
        self.lines += ["", f"# {words}"]

    def books(self):
        for name, account in self.state.ledger.accounts.items():
            parts = {
                "reserved": account.reserved,
                "used": account.used,
                "lent": account.lent,
                "borrowed": account.borrowed,
            }
            shown = ", ".join(f"{word} {part}" for word, part in parts.items() if part)
            self.lines.append(f"  [{name}: {account.spec.resources}; {shown or 'all free'}]")


def told(message):
    """One short line: its name, and the fields that say something."""
    defaults = dict(
        zip(message.__struct_fields__[::-1], message.__struct_defaults__[::-1], strict=False)
    )
    shown = []
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if field in LEFT_OUT or value in (None, {}, defaults.get(field, LEFT_OUT)):
            continue
        shown.append(f"{field.removesuffix('_text')}={plain(value)}")
    return f"{type(message).__name__} {' '.join(shown)}".rstrip()


def plain(value):
    """A value in few words."""
    if isinstance(value, Resources):
        return f"({value})"
    if isinstance(value, Devices):
        return "(" + ", ".join(f"{units / UNIT:g} of #{i}" for i, units in value.units) + ")"
    if isinstance(value, Share):
        return f"{value.amount} from {value.pool_name}"
    if isinstance(value, AgentSpec):
        return f"{value.name} of {value.pool_name} ({value.resources})"
    if isinstance(value, TaskSpec):
        return f"{value.task_id} (priority {value.priority:g})"
    if isinstance(value, Outcome):
        return type(value).__name__
    if isinstance(value, Candidate):
        return f"{value.task_id} ({value.reason}, score {value.preempt_score:g})"
    if isinstance(value, tuple):
        return "[" + "; ".join(plain(one) for one in value) + "]"
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Sentence):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return "{" + told(value).partition(" ")[2] + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {plain(one)}" for key, one in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def a_task_runs_and_ends():
    story = Story(pool("training", cpu=4, gpu=2), nodes=[node("n1", cpu=8, gpu=2)])
    story.submit("train", "training", cpu=2, gpu=1, more={"request_id": "r1"})
    story.books()
    story.report("train")
    story.books()
    story.says("The reply was lost; the same request is answered from memory.")
    story.submit("train", "training", cpu=2, gpu=1, more={"request_id": "r1"})
    story.complete("train")
    story.books()
    return story


def a_task_of_another_pool_lends_its_quota():
    story = Story(pool("prod", cpu=2), pool("research", cpu=4))
    story.run("serve", "prod", 20.0, cpu=2)
    story.run("study", "research", 1.0, cpu=4, class_key="study")
    story.says("prod is full. research lends exactly what is short, until the task ends.")
    story.submit("urgent", "prod", 10.0, cpu=1, more={"request_id": "r1"})
    story.now += 2
    story.save("study")
    story.leave("study")
    story.report("urgent")
    story.books()
    story.complete("urgent")
    story.books()
    return story


def a_start_that_fails_brings_the_victims_back():
    story = Story(pool("p", cpu=2))
    story.run("low", priority=1.0, cpu=2, class_key="low")
    story.submit("high", priority=9.0, cpu=2, more={"request_id": "r1"})
    story.leave("low", saved=True)
    story.says(
        "The incoming agent's class raises. Everything is as it was, and low goes on where it was."
    )
    story.fail("high")
    story.report("low")
    story.books()
    return story


def two_halves_of_two_devices_are_no_gpu():
    story = Story(pool("p", gpu=2), nodes=[node("n1", gpu=2)])
    story.run("a", priority=1.0, gpu=0.5, devices=on((0, 0.5)))
    story.run("b", priority=9.0, gpu=0.5, devices=on((1, 0.5)))
    story.says("One GPU is free in sum. A whole one comes free only where a leaves.")
    story.submit("whole", priority=5.0, gpu=1)
    story.leave("a")
    story.report("whole")
    story.says("Now nobody's leaving would give another whole device.")
    story.submit("next", priority=9.5, gpu=2)
    return story


def labels_decide_before_numbers():
    story = Story(
        pool("p", cpu=1),
        label_preemption_rules={"tier": {"premium": ["batch"]}},
    )
    story.run("batch", priority=9.0, cpu=1, labels={"tier": "batch"})
    story.says("premium wins at lower priority.")
    story.submit("premium", priority=1.0, cpu=1, labels={"tier": "premium"})
    story.slot("premium")
    story.says("And a batch task of any number does not win it back.")
    story.submit("batch", priority=99.0, cpu=1, labels={"tier": "batch"})
    return story


def quota_freed_on_request_waits_sixty_seconds():
    story = Story(pool("p", cpu=4), pool("q", cpu=1))
    story.run("low", "p", cpu=4)
    story.run("full", "q", priority=9.0, cpu=1)
    story.preempt(agent_name="low", end_agent=True, for_pool="q")
    story.leave("low")
    story.books()
    story.run("guest", "q", cpu=1)
    story.books()
    story.says("The rest of the hold runs out; the loan in use stays.")
    story.tick(60)
    story.books()
    return story


def an_incoming_agent_is_deleted_while_it_waits():
    story = Story(pool("p", cpu=2))
    story.run("low", priority=1.0, cpu=2)
    story.submit("high", priority=9.0, cpu=2, more={"request_id": "r1"})
    story.delete("high")
    story.says("The victim is on its way already, and frees its quota for all.")
    story.leave("low")
    story.books()
    return story


def a_node_is_lost_with_its_agents():
    story = Story(pool("p", cpu=4), nodes=[node("n1", cpu=2), node("n2", cpu=2)])
    story.run("x", cpu=2)
    story.handle(s.ClusterObserved(nodes=(node("n2", cpu=2),)))
    story.says("Its claim is held until its agent is known dead.")
    story.books()
    story.die("x")
    story.books()
    return story


STORIES = (
    a_task_runs_and_ends,
    a_task_of_another_pool_lends_its_quota,
    a_start_that_fails_brings_the_victims_back,
    two_halves_of_two_devices_are_no_gpu,
    labels_decide_before_numbers,
    quota_freed_on_request_waits_sixty_seconds,
    an_incoming_agent_is_deleted_while_it_waits,
    a_node_is_lost_with_its_agents,
)


@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
def test_the_story_is_told_as_it_is_written(tell):
    story = tell()
    assert differences(story.state, story.refolded()) == []
    written = FOLDER / f"{tell.__name__}.txt"
    text = "\n".join([tell.__name__.replace("_", " "), *story.lines, ""])
    if os.environ.get("REWRITE_STORIES"):
        written.write_text(text, encoding="utf-8")
    assert written.read_text(encoding="utf-8") == text


def test_every_written_story_is_told():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {tell.__name__ for tell in STORIES}
