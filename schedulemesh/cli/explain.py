"""The command ``explain``: why a task waits, where it runs, by whom it was evicted; for people or as JSON."""

from __future__ import annotations

import re
import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NamedTuple
from unicodedata import east_asian_width

import typer

from schedulemesh.cli.command import Format, Target, View, command
from schedulemesh.cli.language import language, spoken
from schedulemesh.cli.output import repeat
from schedulemesh.cli.rows import Column, Listing, Record
from schedulemesh.cli.texts import amounts, number
from schedulemesh.cli.wording import in_commands, node
from schedulemesh.domain.eviction_causes import cause_of
from schedulemesh.domain.language import Language
from schedulemesh.domain.reasons import LIMITS
from schedulemesh.domain.sentences import Sentence, Text, in_words, say
from schedulemesh.protocol.wording import reworded, translated

if TYPE_CHECKING:
    from schedulemesh.api.nodes import ExternalJobInfo
    from schedulemesh.api.results import (
        AlternativeInfo,
        ConsideredInfo,
        DurationInfo,
        EvictionInfo,
        ExplainResult,
        HolderInfo,
    )

app = typer.Typer()

#: Columns of the text where stdout is no terminal.
WIDTH = 80
#: Columns of the text at least.
_NARROWEST = 40
#: Stands for the second column of a wide character while text is wrapped.
_SECOND = "\0"
#: A space at which no line ends: that between a number and its Chinese unit, such as "3 小时".
_NO_BREAK = "\u00a0"
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?=.{_SECOND})")
_WIDE = rf"[^{_SECOND}]{_SECOND}"
_UNIT = rf"(?<={_NO_BREAK})(?:小{_SECOND}时{_SECOND}|分{_SECOND}钟{_SECOND}|{_WIDE})"
#: What is not broken: marks that open stay with what follows, and marks that close with what is before them.
_UNBROKEN = re.compile(
    rf"(?:[（《]{_SECOND})*(?:(?:[^{_SECOND}](?!{_SECOND}))+(?:{_UNIT})?|{_WIDE})(?:[，。；：、）》？！]{_SECOND})*"
)
#: How each kind of task is called.
_KINDS = {"agent": "kind_task", "gang": "kind_gang", "lease": "kind_lease", "job": "kind_job"}
#: The columns of ``--order``.
_FACTORS = (
    Column(heading="factor", key="factor"),
    Column(heading="value", key="value", show=lambda value: number(value and round(value, 4))),
    Column(heading="", key="detail"),
)
#: States of tasks that have ended.
_ENDED = ("completed", "failed", "cancelled", "lost")
#: How many holders and spared groups of tasks are shown.
_SHOWN = 5


@command(app)
def explain(
    target: Target,
    view: View,
    task: Annotated[str, typer.Argument(help="The task's id.")],
    order: Annotated[
        bool,
        typer.Option("--order", help="By what it is compared with other tasks that wait."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Say why a task waits, where it runs, by whom it was evicted or how it ended."""
    from schedulemesh.api.tasks import ExplainTask
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.answers import Explained
    from schedulemesh.protocol.public import explained

    view = replace(view, output=Format.JSON) if as_json else view
    with gateway_to(target) as gateway:

        def look() -> Record:
            answer = explained(gateway.ask(ExplainTask(task_id=task), Explained).explanation)
            facts: ExplainResult = reworded(translated(answer, language()), in_commands)
            if order:
                return _order(facts)
            width = shutil.get_terminal_size((WIDTH, 24)).columns
            text = text_of(facts, time.time(), max(width, _NARROWEST), language())
            return Record(facts=facts, name="task_id", text=text)

        repeat(view, look)


def _order(answer: ExplainResult) -> Record:
    """The factors of its place, the first to be compared first."""
    place = {
        "task_id": answer["task_id"],
        "pool_name": answer["pool_name"],
        "state": answer["state"],
        "position": answer["position"],
        "queue_length": answer["queue_length"],
    }
    rows = [dict(factor) for factor in answer["order"]]
    listing = Listing(kind="order", rows=rows, columns=_FACTORS, name="factor")
    return Record(facts=place, name="task_id", text=_where(answer), listings=(listing,))


def _where(answer: ExplainResult) -> str:
    """Which place a task has, in one sentence."""
    task, position = answer["task_id"], answer["position"]
    if not position:
        return spoken(say("no_place", task=task, state=answer["state"]))
    length, pool = answer["queue_length"], answer["pool_name"]
    return spoken(say("place", task=task, position=position, length=length, pool=pool))


class Line(NamedTuple):
    """A line of the text before it is wrapped: what begins its first line, and the others."""

    what: Text
    first: str = ""
    later: str = "  "


def text_of(
    answer: ExplainResult, now: float, width: int = WIDTH, language: Language = "en"
) -> str:
    """The explanation for a person, in lines of at most so many columns."""
    lines = _lines(answer, now)
    return "\n".join(part for line in lines for part in _wrapped(line, width, language))


def _lines(answer: ExplainResult, now: float) -> list[Line]:
    lines = [Line(_title(answer, now))]
    lines += _part("", in_commands(answer["detail"]))
    lines += _part(answer["reason"], answer["error"])
    lines += _part(say("next_step"), answer["hint"])
    for other in answer["others"]:
        lines += _part(say("also", reason=other["reason"]), other["error"])
    for one in answer["alternatives"]:
        lines += _part(_name_of(one), _alternative(one))
    lines += _part(say("before_it"), _before(answer))
    if answer["weight_raised_by"] > 1.0:
        raised = say("weight_raised", factor=answer["weight_raised_by"])
        lines += _part(say("weight_of_pool"), raised)
    waits_for = say("names", names=answer["waits_for"]) if answer["waits_for"] else ""
    lines += _part(say("waits_for"), waits_for)
    lines += _listed(say("holders"), [_holder(holder) for holder in answer["holders"]])
    for usage in answer["external_usage"]:
        heading = say("node", node=node(usage["node_id"]))
        lines += _part(heading, say("other_work", amount=amounts(usage["resources"])))
        lines += _listed(say("used_by"), [_job(job) for job in usage["jobs"]])
    if answer["considered"] is not None:
        lines += _considered(answer["considered"])
    if answer["expected_duration"] is not None:
        lines += _part(say("expected_duration"), _duration(answer["expected_duration"]))
    lines += _part(say("heading_time_limit"), _time_limit(answer, now))
    lines += _part(say("heading_idle_limit"), _idle_limit(answer, now))
    if answer["state"] == "queued":
        lines += _part(say("earliest_start"), _start(answer, now))
    if answer["eviction"] is not None and not _is_said(answer["eviction"], answer):
        eviction = _eviction(answer["eviction"], answer["state"], now)
        lines += _part(say("last_eviction"), eviction)
    return lines


def _title(answer: ExplainResult, now: float) -> Sentence:
    """Which task it is and of what kind, its state, and since when."""
    return say(
        "title",
        kind=say(_KINDS[answer["kind"]]),
        task=answer["task_id"],
        pool=answer["pool_name"],
        priority=answer["priority"],
        owner=say("title_owner", owner=answer["owner"]) if answer["owner"] else "",
        state=answer["state"],
        since=_since(answer, now),
        further=say("joined", parts=tuple(_further(answer))),
    )


def _since(answer: ExplainResult, now: float) -> Text:
    """Since when it is in its state, as the end of a sentence."""
    if answer["since"] is None:
        return ""
    has_ended = answer["state"] in _ENDED
    return say("title_ago" if has_ended else "title_for", time=now - answer["since"])


def _further(answer: ExplainResult) -> Iterator[Sentence]:
    """What else the title says."""
    if answer["alternative"] and answer["state"] != "queued":
        yield say("title_alternative", number=answer["alternative"])
    if answer["flavor"] and answer["state"] != "queued":
        yield say("title_flavor", flavor=answer["flavor"])
    if answer["position"]:
        length = answer["queue_length"]
        yield say("title_position", position=answer["position"], length=length)
    if answer["preemptions"]:
        yield say("title_evicted", count=answer["preemptions"])
    if answer["failures"]:
        yield say("title_failed", count=answer["failures"])


def _name_of(one: AlternativeInfo) -> Sentence:
    """The alternative and the flavor of the pool."""
    number, flavor = one["number"], one["flavor"]
    if not flavor:
        return say("alternative_number", number=number)
    if not number:
        return say("flavor_named", flavor=flavor)
    return say("alternative_in_flavor", number=number, flavor=flavor)


def _alternative(one: AlternativeInfo) -> Sentence:
    """Why a task does not start in one of its alternatives."""
    victims = one["victims"][:_SHOWN]
    would = say("would_evict", tasks=victims) if victims else ""
    way, reason = one["alternative"], one["reason"]
    return say("way", way=way, error=one["error"], reason=reason, victims=would)


def _before(answer: ExplainResult) -> Text:
    before = answer["before"]
    more = answer["position"] - 1 - len(before)
    if before and more > 0:
        return say("names_and", names=before, count=more)
    return say("names", names=before) if before else ""


def _holder(holder: HolderInfo) -> Sentence:
    tasks: list[str | Sentence] = [*holder["task_ids"][:_SHOWN]]
    return say(
        "holder",
        tasks=tasks or (say("agent", agent=holder["agent_name"]),),
        pool=holder["pool_name"],
        amount=amounts(holder["resources"]),
    )


def _job(job: ExternalJobInfo) -> Sentence:
    amount = amounts(job["resources"])
    if job["task_id"]:
        return say("job_uses_beyond", amount=amount, job=job["task_id"])
    driver = say("colon", what=job["entrypoint"]) if job["entrypoint"] else ""
    job_id, namespace = job["job_id"], job["namespace"]
    return say("job_uses", amount=amount, job=job_id, namespace=namespace, driver=driver)


def _considered(considered: ConsideredInfo) -> Iterator[Line]:
    """Who could be evicted, or which rules spare how many."""
    if considered["victims"]:
        yield from _part(say("evictions"), say("room_after", tasks=considered["victims"]))
        return
    spared = [
        say("spared", count=count, code=code, meaning=say("code_means", code=code))
        for code, count in considered["turned_away"].items()
    ]
    if considered["searched"]:
        heading = say("no_evictions", count=considered["tasks"])
    else:
        evictable = considered["evictable"] or 0
        heading = say("evictions_allowed", evictable=evictable, count=considered["tasks"])
    yield from _listed(heading, spared)
    if considered["sufficient_priority"] is not None:
        priority = say("sufficient_priority", priority=considered["sufficient_priority"])
        yield from _part(say("sufficient"), priority)


def _start(answer: ExplainResult, now: float) -> Sentence:
    at, rests_on = answer["earliest_start"], answer["start_rests_on"]
    if at is None:
        return say("start_not_known", why=answer["no_estimate"])
    if at <= now:
        return say("start_now")
    if answer["start_waits_for_limit"]:
        return say("start_after_limit", wait=at - now, task=answer["start_waits_for_limit"])
    if answer["start_waits_for_overdue"]:
        return say("start_perhaps", wait=at - now)
    if rests_on is None:
        return say("start_if_estimates_hold", wait=at - now)
    return say("start_about", wait=at - now, task=rests_on["task_id"], runs=_runs(rests_on))


def _duration(estimate: DurationInfo) -> Sentence:
    """How long a task runs, and how sure that is."""
    return say(
        "duration_about",
        time=estimate["seconds"],
        runs=_runs(estimate),
        low=estimate["low_s"],
        high=estimate["high_s"],
    )


def _runs(estimate: DurationInfo) -> Sentence:
    """From which runs an estimate was made."""
    features = [say("runs_owner", owner=estimate["owner"])] if estimate["owner"] else []
    features += [say("runs_pool", pool=estimate["pool_name"])] if estimate["pool_name"] else []
    features += [say("runs_pattern", pattern=estimate["pattern"])] if estimate["pattern"] else []
    features += [say("runs_gpu", gpus=estimate["gpus"])] if estimate["gpus"] else []
    features += [say("runs_cpu", cpus=estimate["cpus"])] if estimate["cpus"] else []
    return say("earlier_runs", count=estimate["runs"], features=features)


def _is_said(eviction: EvictionInfo, answer: ExplainResult) -> bool:
    """Whether why it has ended says all of an eviction: by a limit in time, nothing is freed for anybody."""
    return eviction["rule"] in LIMITS and eviction["rule"] == answer["reason"]


def _time_limit(answer: ExplainResult, now: float) -> Text:
    """How long it may run, and when it has done so."""
    limit = answer["run_limit_s"]
    if limit is None or answer["state"] not in ("queued", "starting", "running"):
        return ""
    of_pool: Text = ""
    if answer["max_run_s"] != limit:
        of_pool = say("limit_of_pool", pool=answer["pool_name"])
    if answer["limit_at"] is None:
        return say("limit_from_start", limit=limit, of_pool=of_pool)
    remaining = answer["limit_at"] - now
    if remaining <= 0:
        return say("limit_over", limit=limit, of_pool=of_pool)
    return say("limit_ends", limit=limit, of_pool=of_pool, rest=remaining)


def _idle_limit(answer: ExplainResult, now: float) -> Text:
    """For how long its GPUs may be idle, and whether they are."""
    limit, state = answer["idle_limit_s"], answer["state"]
    if limit is None or state not in ("starting", "running"):
        return ""
    if answer["idle_ends_at"] is not None and answer["idle_since"] is not None:
        rest = answer["idle_ends_at"] - now
        return say("idle_ends", idle=now - answer["idle_since"], rest=rest)
    if answer["gpus_measured"] is False:
        return say("idle_not_measured", limit=limit)
    return say("idle_warns", limit=limit)


def _eviction(eviction: EvictionInfo, state: str, now: float) -> Sentence:
    """By whom, by which rule, what was saved, and what became of what was freed. ``state``: of the task,
    which may not have been saved yet.
    """
    leaves, score = state == "preempting", eviction["score"]
    parts = [
        say(
            "eviction",
            time=now - eviction["at"],
            by=_evictor(eviction),
            rule=eviction["rule"],
            score="" if score is None else say("score", score=score),
        ),
        _saved(eviction, leaves=leaves),
    ]
    if eviction["idle_since"] is not None:
        parts.append(say("was_idle_victim", idle=eviction["at"] - eviction["idle_since"]))
    if eviction["lost_s"] is not None:
        parts.append(say("work_at_risk" if leaves else "work_lost", time=eviction["lost_s"]))
    if eviction["used"] is not None:
        parts.append(say("freed_is_used" if eviction["used"] else "freed_not_used"))
    if eviction["ran_again_at"] is not None:
        parts.append(say("ran_again", time=now - eviction["ran_again_at"]))
    return say("parts", parts=parts)


def _evictor(eviction: EvictionInfo) -> Sentence:
    """For whom it was evicted, or why else."""
    if not eviction["by_agent"]:
        return cause_of(eviction["rule"])
    evictor = say("evictor_is_agent", agent=eviction["by_agent"])
    if eviction["by_task"]:
        evictor = say("evictor_is_task", task=eviction["by_task"])
    owner = say("of_owner", owner=eviction["by_owner"]) if eviction["by_owner"] else ""
    return say("eviction_for", evictor=evictor, owner=owner, pool=eviction["by_pool"])


def _saved(eviction: EvictionInfo, *, leaves: bool) -> Sentence:
    """What was saved for an eviction; ``leaves``: it is in progress."""
    if eviction["save_error"]:
        earlier = "earlier_state" if eviction["state_saved"] else "state_not_saved"
        return say(earlier, error=eviction["save_error"])
    if eviction["state_saved"]:
        return say("state_was_saved")
    return say("state_not_saved_yet" if leaves else "no_state_saved")


def _part(heading: Text, what: Text) -> list[Line]:
    """A part of the text; none where there is nothing to say."""
    if not what:
        return []
    return [Line(say("headed", heading=heading, what=what) if heading else what, "  ", "    ")]


def _listed(heading: Text, entries: Sequence[Text]) -> list[Line]:
    if not entries:
        return []
    lines = [Line(say("heading", heading=heading), "  ", "    ")]
    lines += [Line(entry, "    ", "      ") for entry in entries[:_SHOWN]]
    if len(entries) > _SHOWN:
        lines.append(Line(say("and_more", count=len(entries) - _SHOWN), "    "))
    return lines


def _wrapped(line: Line, width: int, language: Language) -> list[str]:
    what, first, later = in_words(line.what, language), line.first, line.later
    measured = "".join(c + _SECOND if east_asian_width(c) in "WF" else c for c in what)
    # A long name may be broken within a wide character, which then reaches one column further.
    width -= measured != what
    wrapper = _Wrapper(width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return [part.replace(_SECOND, "").replace(_NO_BREAK, " ") for part in wrapper.wrap(measured)]


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines also between wide characters, but not apart from their marks."""

    def _split(self, text: str) -> list[str]:
        text = _BEFORE_UNIT.sub(_NO_BREAK, text)
        return [part for chunk in super()._split(text) for part in _UNBROKEN.findall(chunk)]
