"""The commands submit, jobs and logs."""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from schedulemesh.cli.changes import assignments, pairs
from schedulemesh.cli.columns import JOBS
from schedulemesh.cli.command import Select, Target, View, command, note, words_after_dashes
from schedulemesh.cli.job_options import DescriptionOptions, JobOptions, completed, task_arguments
from schedulemesh.cli.language import phrase
from schedulemesh.cli.node_choice import fallback_strategy, node_selector
from schedulemesh.cli.output import show
from schedulemesh.cli.priorities import PriorityOption
from schedulemesh.cli.rows import Listing
from schedulemesh.cli.selection import listed
from schedulemesh.cli.texts import duration, local_time, megabytes, seconds

if TYPE_CHECKING:
    from schedulemesh.api.logs import ReadTaskLog
    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.engine.messages.outcomes import Accepted
    from schedulemesh.protocol.answers import TaskLog

app = typer.Typer()

#: How labels and variables are written.
#: What word processors write for straight quotes.
_CURLY_QUOTES = "“”‘’"
_LABEL, _VARIABLE = "a label is LABEL=VALUE", "a variable is NAME=VALUE"
#: What an amount of a bundle is of, if it is of no custom resource.
_KINDS = ("cpu", "gpu", "memory")


@command(app)
def submit(
    target: Target,
    job: JobOptions,
    context: typer.Context,
    entrypoint: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="The driver's command, after `--`."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="YAML with these options by name, and its `command`.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only say what would happen: exit code 0 where it would start now, 6 where it would not.",
        ),
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Refuse it where it does not fit, instead of queueing it.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for its end, and exit with its exit code.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="As --wait, and print what it writes.")
    ] = False,
) -> int:
    """Run a driver command as a task on the cluster.

    A script may have options in the comments at its beginning, as `#SM --gpus 4`; those of the command line
    override them.
    """
    from schedulemesh.cli.gateway import gateway_to

    _check_words(context, job, entrypoint or [])
    job, command_words = completed(context, job, entrypoint or [], file)
    _check_array(job, now=now, follow=follow)
    _check_dry_run(dry_run=dry_run, wait=wait, follow=follow)
    name = _checked_id(job.task_id) or f"job-{uuid.uuid4().hex[:8]}"
    fields = {**_job_arguments(job), "task_id": name, "entrypoint": command_words, "queue": not now}
    with gateway_to(target) as gateway:
        amounts = partial(_amounts, gateway, job)
        fields["resources"] = amounts({})
        fields["fallback_strategy"] = fallback_strategy(job.fallback or (), amounts)
        _note_missing_cpus(job.bundle or ())
        if dry_run:
            return _print_dry_run(gateway, fields)
        _submit(gateway, fields)
        if not (wait or follow):
            print(name)
            return 0
        note(phrase("job_submitted", name=name))
        return _wait_for_job(gateway, name, follow=follow)


def _check_words(context: typer.Context, job: JobOptions, words: Sequence[str]) -> None:
    """Raise InvalidRequestError for what the words of the command line themselves contradict; what a script
    or a file says is overridden by them.
    """
    from schedulemesh.errors import InvalidRequestError

    after = words_after_dashes(context)
    if after is not None and len(words) > after:
        raise InvalidRequestError(
            f"{words[0]!r} stands before `--` and belongs to no option; the command comes after `--`, and "
            "the value of an option is one word, such as 2h, or stands in quotes"
        )
    if words and not words[0].strip():
        raise InvalidRequestError("the command is empty; give its words after `--`")
    pairs(job.label or (), "--label", _LABEL)
    for name in pairs(job.env or (), "--env", _VARIABLE):
        if name.startswith("$") or name.split() != [name]:
            raise InvalidRequestError(
                f"--env has {name!r}; the name of a variable has no spaces, and no $ before it"
            )


def _check_dry_run(*, dry_run: bool, wait: bool, follow: bool) -> None:
    """Raise InvalidRequestError where nothing starts that could be waited for."""
    from schedulemesh.errors import InvalidRequestError

    if dry_run and (wait or follow):
        option = "--follow" if follow else "--wait"
        raise InvalidRequestError(f"--dry-run starts nothing, so leave out {option}")


def _check_array(job: JobOptions, *, now: bool, follow: bool) -> None:
    """Raise InvalidRequestError for what an array cannot do."""
    from schedulemesh.errors import InvalidRequestError

    if job.array is not None and now:
        raise InvalidRequestError(
            "--now is for one job; an array waits in the queue, so leave it out"
        )
    if job.array is not None and follow:
        raise InvalidRequestError(
            "--follow prints what one job writes; use --wait, and `schedulemesh logs ID[INDEX] --follow`"
        )


def _checked_id(task_id: str | None) -> str | None:
    """The id that was given; None: one is made. Raises InvalidRequestError."""
    from schedulemesh.domain.names import parse_name
    from schedulemesh.errors import InvalidRequestError

    if task_id is not None and task_id.startswith("-"):
        raise InvalidRequestError(
            f"--id is {task_id!r}, which other commands would take for an option; begin it with a letter or "
            "a digit"
        )
    if quotes := [mark for mark in _CURLY_QUOTES if mark in (task_id or "")]:
        raise InvalidRequestError(
            f"--id has the quotes {' and '.join(quotes)}, which a shell takes for a part of the id; type "
            "straight ones, or none"
        )
    return None if task_id is None else parse_name(task_id, "--id")


def _job_arguments(job: JobOptions) -> dict[str, object]:
    """The arguments of ``submit_job`` that options stand for. Raises InvalidRequestError."""
    return {
        **task_arguments(job),
        "pool_name": job.pool,
        "labels": pairs(job.label or (), "--label", _LABEL, later_wins=True),
        "bundles": parse_bundle_words(job.bundle or ()),
        "strategy": job.strategy,
        "label_selector": node_selector(job.gpu_model, job.node_label or ()),
        "priority": job.priority,
        "working_dir": job.working_dir,
        "env": pairs(job.env or (), "--env", _VARIABLE, later_wins=True),
        "runtime_env": None if job.runtime_env is None else _runtime_env(job.runtime_env),
        "checkpoint_dir": job.checkpoint_dir,
        "driver_cpus": job.driver_cpus,
        "driver_gpus": job.driver_gpus,
        "start_limits": _start_limits(job.start_limit or ()),
        "grace_s": None if job.grace is None else seconds(job.grace, "--grace"),
        "over_claim": job.over_claim,
        "keep_actors": job.keep_actor,
        "detached": job.detached,
    }


@command(app)
def adopt(
    target: Target,
    described: DescriptionOptions,
    ray_job_id: Annotated[
        str, typer.Argument(help="The id of a Ray job, one of `schedulemesh external`.")
    ],
    pool: Annotated[str, typer.Option(help="The pool that it runs in from now on.")],
    task_id: Annotated[str | None, typer.Option("--id", help="Its id; else one is made.")] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0, help="CPUs that it claims; else what it holds of all.")
    ] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs that it claims.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that it claims, such as 64GB.")
    ] = None,
    priority: PriorityOption = 5.0,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="From SIGTERM to its end when it is evicted: 90s."),
    ] = None,
) -> None:
    """Make a Ray job that somebody else has started a task, which is accounted and can be evicted."""
    from schedulemesh.api.jobs import ListJobs
    from schedulemesh.api.nodes import ListExternalUsage
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.core.client.job_adoption import adoption
    from schedulemesh.core.client.task_request import Caller
    from schedulemesh.protocol.answers import Listed, Response

    size = None if memory is None else megabytes(memory, "--memory")
    amounts = {"cpu": cpus, "gpu": gpus, "memory": size}
    claim = {kind: amount for kind, amount in amounts.items() if amount is not None}
    fields = {
        **task_arguments(described),
        "labels": pairs(described.label or (), "--label", _LABEL),
        "resources": claim or None,
        "ray_job_id": ray_job_id,
        "pool_name": pool,
        "task_id": _checked_id(task_id) or f"ray-job-{ray_job_id}",
        "priority": priority,
        "grace_s": None if grace is None else seconds(grace, "--grace"),
    }
    with gateway_to(target) as gateway:
        rows = gateway.ask(ListExternalUsage(), Listed).rows
        jobs = gateway.ask(ListJobs(), Listed).rows
        caller = Caller(namespace=gateway.namespace, runtime_env={})
        gateway.ask(adoption(caller, fields, rows, jobs).request, Response)
    print(fields["task_id"])


@command(app, "jobs")
def list_jobs(target: Target, view: View, select: Select) -> None:
    """List the jobs that run, wait, or have ended lately."""
    from schedulemesh.api.jobs import JobListing, ListJobs

    def listing(rows: list[dict[str, object]]) -> Listing:
        return Listing(kind="jobs", rows=rows, columns=JOBS, row=JobListing, name="task_id")

    show(target, view, lambda g: listed(g, ListJobs(), listing, select), select)


@command(app)
def logs(
    target: Target,
    task: Annotated[str, typer.Argument(help="The id of a task: a job, an agent or a gang.")],
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt; else of the last one.")
    ] = None,
    rank: Annotated[
        int, typer.Option("--rank", "--member", min=0, help="Of a gang: of this member.")
    ] = 0,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream",
            metavar="STREAM",
            help="Of an agent: stdout or stderr alone; else each is printed where it belongs.",
        ),
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="The last so many lines only.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print also what it writes from now on, until its end.")
    ] = False,
    search: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only lines with this text, whatever the case."),
    ] = None,
) -> int:
    """Print what an attempt of a task has written: the driver of a job, or the process of an agent.

    With --search it fails where no line has the text.
    """
    from schedulemesh.api.logs import ReadTaskLog
    from schedulemesh.cli.gateway import gateway_to

    if search == "":
        from schedulemesh.errors import InvalidRequestError

        raise InvalidRequestError("--search is empty; it takes the text to look for")
    request = ReadTaskLog(task_id=task, attempt=attempt, rank=rank, stream=stream)
    with gateway_to(target) as gateway:
        printed = [
            _printing(
                pieces if search is None else _lines_with(pieces, search),
                sys.stderr if stream is None and name == "stderr" else sys.stdout,
            )
            for name, pieces in _logs(gateway, request, follow=follow, tail=tail)
        ]
        anything = _alternately(printed)
    return 0 if anything or search is None else 1


def _logs(
    gateway: Gateway, request: ReadTaskLog, *, follow: bool, tail: int | None
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The streams of a request that names one or none, each with its pieces; a job's name is empty."""
    import msgspec

    from schedulemesh.api.logs import STREAMS
    from schedulemesh.protocol.answers import TaskLog

    first = gateway.ask(msgspec.structs.replace(request, limit=1), TaskLog)
    if not first.attempt:
        note(phrase("job_not_started", name=request.task_id, state=first.state))
    for name in STREAMS if first.stream and request.stream is None else (first.stream,):
        one = msgspec.structs.replace(request, stream=name or None)
        yield name, _log(gateway, one, follow=follow, tail=tail)


def _alternately(printed: Sequence[Iterator[bool]]) -> bool:
    """Have each print one piece after the other, until all are at their end; whether there was anything."""
    anything, remaining = False, list(printed)
    while remaining:
        for printing in tuple(remaining):
            did = next(printing, None)
            anything = anything or bool(did)
            if did is None:
                remaining.remove(printing)
    return anything


def _lines_with(pieces: Iterable[bytes], search: str) -> Iterator[bytes]:
    """The lines of a log that have a text, whatever the case."""
    sought, rest = search.lower(), b""
    for piece in chain(pieces, (b"\n",)):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if sought in line.decode("utf-8", "replace").lower():
                yield line + b"\n"
        yield b""


def _printing(pieces: Iterable[bytes], output: TextIO) -> Iterator[bool]:
    """Print pieces of a log as they come; of each, whether there was anything in it."""
    for piece in pieces:
        output.buffer.write(piece)
        output.flush()
        yield bool(piece)


def _log(
    gateway: Gateway,
    request: ReadTaskLog,
    *,
    follow: bool,
    tail: int | None,
    seen: Callable[[str], None] = lambda _state: None,
) -> Iterator[bytes]:
    """The log of a task in pieces; ``seen`` is called with its state at each look."""
    from schedulemesh.protocol.answers import TaskLog
    from schedulemesh.protocol.log_reader import log_pieces

    def ask(part: ReadTaskLog) -> TaskLog:
        answer = gateway.ask(part, TaskLog)
        seen(answer.state)
        return answer

    return log_pieces(ask, request, follow=follow, tail=tail)


def _submit(gateway: Gateway, fields: dict[str, object]) -> None:
    """Submit a job. Raises RefusedError."""
    from schedulemesh.protocol.patience import until_answered

    send = gateway.job_submission(fields)
    try:
        # It has an id by which the scheduler knows it again.
        until_answered(send)
    except KeyboardInterrupt:
        note(phrase("job_maybe_submitted", name=str(fields["task_id"])))
        raise


def _print_dry_run(gateway: Gateway, fields: dict[str, object]) -> int:
    """Print what a submission would do; the exit code of ``--dry-run``."""
    from schedulemesh.cli.exits import ExitCode, RefusedError, code_of
    from schedulemesh.engine.messages.outcomes import Accepted

    try:
        outcome = gateway.job_submission({**fields, "dry_run": True})().outcome
    except RefusedError as error:
        print(phrase("job_would_not_start", error=str(error)))
        if (position := error.refused.position) is not None:
            print(phrase("job_position", position=position))
        if (at := error.refused.earliest_start) is not None:
            print(phrase("job_earliest", time=local_time(at)))
        code = code_of(error)
        return ExitCode.CONFLICT if code is ExitCode.FAILED else code
    if isinstance(outcome, Accepted):
        _print_start(outcome)
    return ExitCode.OK


def _print_start(outcome: Accepted) -> None:
    """Print who would give way to a submission that would start now."""
    victims, starts = outcome.preempted, outcome.cancelled_starts
    if victims:
        print(phrase("job_would_evict", count=len(victims)))
    else:
        print(phrase("job_would_start"))
    for victim in victims:
        lost = duration(victim.lost_work)
        what = phrase("job_victim", task=victim.task_id, reason=victim.reason, span=lost)
        print(f"  {what}")
    if starts:
        print(phrase("job_would_cancel", starts=starts))


def _wait_for_job(gateway: Gateway, name: str, *, follow: bool) -> int:
    """The exit code of a job's driver, once that has ended. ``follow``: print what it writes until then."""
    from schedulemesh.api.logs import ReadTaskLog
    from schedulemesh.cli.job_ends import QueueNotes, exit_code

    notes = QueueNotes(gateway, name)
    try:
        notes.until_started()
        if follow:
            log = ReadTaskLog(task_id=name)
            pieces = _log(gateway, log, follow=True, tail=None, seen=notes.seen)
            _alternately([_printing(pieces, sys.stdout)])
        return exit_code(gateway, name, notes.until_started)
    except KeyboardInterrupt:
        note(phrase("job_goes_on", name=name))
        raise


def _amounts(
    gateway: Gateway, job: JobOptions, changed: Mapping[str, object]
) -> dict[str, object] | None:
    """What the options ask for, with the amounts that an alternative says in place of theirs."""
    gpus = changed.get("gpu", job.gpus)
    cpus = changed.get("cpu", job.cpus)
    if cpus is None:
        cpus = _cpus_for(gateway, str(job.pool), float(str(gpus)))
    memory = changed.get("memory") or (
        0.0 if job.memory is None else megabytes(job.memory, "--memory")
    )
    custom = changed.get("custom", _custom(job.resource or ()))
    amounts = {"cpu": cpus, "gpu": gpus, "memory": memory, "custom": custom}
    return _resources(amounts, () if changed else job.bundle)


def _cpus_for(gateway: Gateway, pool_name: str, gpus: float) -> float:
    """The CPUs of a claim that names its GPUs alone: an actor with a GPU holds a CPU in Ray, too, unless it
    says otherwise. Nothing in a pool that owns no CPUs and can borrow none.
    """
    from schedulemesh.api.pools import ListPools
    from schedulemesh.protocol.answers import Listed

    # What is no finite number is refused as the GPUs that were asked for.
    if not gpus or not math.isfinite(gpus):
        return 0.0
    pools = {row["name"]: row for row in gateway.ask(ListPools(), Listed).rows}
    if pool_name in pools and not _may_have_cpus(gateway, pools[pool_name]):
        note(phrase("job_no_cpu_quota", pool=pool_name))
        return 0.0
    return float(math.ceil(gpus))


def _note_missing_cpus(bundles: Iterable[str]) -> None:
    """Say which part of a claim has GPUs and no CPUs."""
    for bundle in bundles:
        amounts = assignments(bundle.split(","))
        if amounts.get("gpu") and not amounts.get("cpu"):
            note(phrase("job_bundle_without_cpus", bundle=bundle))
            return


def _may_have_cpus(gateway: Gateway, pool: dict[str, Any]) -> bool:
    """Whether a pool, of which this is the row, owns CPUs, or may borrow some in its tree of cohorts."""
    from schedulemesh.api.pools import ListCohorts
    from schedulemesh.protocol.answers import Listed

    if pool["resources"].get("cpu"):
        return True
    limit = pool.get("borrowing_limit")
    if pool.get("cohort") is None or limit == 0 or (limit and limit.get("cpu") == 0):
        return False
    cohorts = {row["name"]: row for row in gateway.ask(ListCohorts(), Listed).rows}
    root = pool["cohort"]
    while cohorts[root]["parent"] is not None:
        root = cohorts[root]["parent"]
    return bool(cohorts[root]["resources"].get("cpu"))


def _resources(
    amounts: dict[str, object], bundles: Sequence[str] | None
) -> dict[str, object] | None:
    """What the options ask for; None where bundles alone do."""
    positive_amounts = {kind: amount for kind, amount in amounts.items() if amount}
    return positive_amounts if positive_amounts or not bundles else None


def _custom(words: Iterable[str]) -> dict[str, object]:
    """Custom resources, of which the last word about each counts. Raises InvalidRequestError."""
    form = "a custom resource is NAME=AMOUNT, such as tpu=4"
    amounts = pairs(words, "--resource", form)
    return assignments(f"{name}={amount}" for name, amount in amounts.items())


def parse_bundle_words(words: Iterable[str]) -> list[dict[str, object]] | None:
    """Bundles from words ``NAME=AMOUNT,…``; None: there are none. What is neither cpu, gpu nor memory is a
    custom resource. Raises InvalidRequestError.
    """
    from schedulemesh.errors import InvalidRequestError

    bundles: list[dict[str, object]] = []
    for word in words:
        if not all(sign and name for name, sign, _ in (p.partition("=") for p in word.split(","))):
            raise InvalidRequestError(
                f"--bundle is {word!r}; a part of the claim is NAME=AMOUNT,…, such as cpu=8,gpu=4"
            )
        amounts = assignments(word.split(","))
        of_ray = {name: amount for name, amount in amounts.items() if name in _KINDS}
        custom = {name: amount for name, amount in amounts.items() if name not in _KINDS}
        bundles.append({**of_ray, "custom": custom} if custom else of_ray)
    return bundles or None


def _start_limits(words: Iterable[str]) -> dict[str, float] | None:
    """How long each named phase of the start may take. Raises InvalidRequestError."""
    limits = pairs(words, "--start-limit", "a limit is PHASE=DURATION, such as load=5m")
    return {
        phase: seconds(span, f"--start-limit {phase}") for phase, span in limits.items()
    } or None


def _runtime_env(source: str) -> object:
    """A runtime environment as the text of a file, or as text. Raises InvalidRequestError."""
    import yaml

    from schedulemesh.errors import InvalidRequestError, shown

    is_file = source.endswith((".yaml", ".yml", ".json")) or (
        ":" not in source and "{" not in source
    )
    try:
        environment = yaml.safe_load(Path(source).read_text("utf-8") if is_file else source)
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = "which cannot be read" if is_file else "which is no YAML"
        why = " ".join(str(error).split())
        raise InvalidRequestError(f"--runtime-env is {shown(source)}, {what}: {why}") from None
    if not isinstance(environment, dict):
        raise InvalidRequestError(
            f"--runtime-env is {shown(source)}; it must be a YAML or JSON file with names and values, or "
            "such a text, as {env_vars: {A: b}}"
        )
    return environment
