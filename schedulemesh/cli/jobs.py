"""The commands submit, jobs and logs."""

from __future__ import annotations

import math
import sys
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.columns import JOBS
from schedulemesh.cli.command import Select, Target, View, command, note
from schedulemesh.cli.output import show
from schedulemesh.cli.rows import Listing

if TYPE_CHECKING:
    from schedulemesh.cli.gateway import Gateway
    from schedulemesh.protocol.answers import JobLog
    from schedulemesh.protocol.job_logs import ReadJobLog

app = typer.Typer()

#: What an amount of a bundle is of, if it is of no custom resource.
_KINDS = ("cpu", "gpu", "memory")


@command(app)
def submit(
    target: Target,
    entrypoint: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The driver's command, after `--`.")
    ],
    pool: Annotated[str, typer.Option(help="The pool that it runs in.")],
    task_id: Annotated[str | None, typer.Option("--id", help="Its id; else one is made.")] = None,
    cpus: Annotated[
        float | None,
        typer.Option(min=0, help="CPUs for what it starts in Ray; else one for each of its GPUs."),
    ] = None,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs for what it starts in Ray.")] = 0.0,
    memory: Annotated[float, typer.Option(min=0, help="Memory for what it starts, in MB.")] = 0.0,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="A custom resource. Repeatable."),
    ] = None,
    bundle: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=AMOUNT,…",
            help="A part of the claim, on one node, such as cpu=8,gpu=4. Repeatable.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How its parts are placed: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD. "
            "Without --bundle there is a part for each GPU, else for each CPU."
        ),
    ] = None,
    priority: Annotated[float, typer.Option(help="Its priority.")] = 5.0,
    working_dir: Annotated[
        str | None,
        typer.Option(help="A folder of this machine that it runs in, up to 16 MB packed."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable of its environment. Repeatable."),
    ] = None,
    runtime_env: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|YAML", help="Ray's runtime environment: a YAML or JSON file, or its text."
        ),
    ] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="A folder on all nodes that every attempt finds again.")
    ] = None,
    driver_cpus: Annotated[
        float | None, typer.Option(min=0, help="CPUs of its claim that the driver itself holds.")
    ] = None,
    driver_gpus: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GPUs of its claim that the driver itself holds; else all, until it connects to Ray.",
        ),
    ] = None,
    start_limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PHASE=SECONDS",
            help="How long environment, load or constructor may take. Repeatable.",
        ),
    ] = None,
    grace: Annotated[
        float | None, typer.Option(min=0, help="Seconds from the notice of an eviction to its end.")
    ] = None,
    over_claim: Annotated[
        str | None,
        typer.Option(
            help="warn or end: where it holds more in Ray than it claims; else the policy's."
        ),
    ] = None,
    keep_actor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE/NAME", help="A detached actor that stays when it ends. Repeatable."
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="To whom it belongs; else the user of this process.")
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often it is started again.")] = 0,
    on_oom: Annotated[
        str | None,
        typer.Option(
            help="retry, grow (with twice the memory) or fail: where it is killed by a shortage of memory."
        ),
    ] = None,
    oom_max_memory: Annotated[
        float | None, typer.Option(min=0, help="The most memory that grow gives it, in MB.")
    ] = None,
    on_preempted: Annotated[
        str, typer.Option(help="requeue or drop: what becomes of it when it is evicted.")
    ] = "requeue",
    detached: Annotated[
        bool,
        typer.Option("--detached", help="Not a child of the task that this process belongs to."),
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
    """Run a driver command as a task on the cluster."""
    from schedulemesh.cli.changes import assignments
    from schedulemesh.cli.gateway import gateway_to

    name = task_id or f"job-{uuid.uuid4().hex[:8]}"
    custom = assignments(resource or ())
    amounts: dict[str, object] = {"gpu": gpus, "memory": memory}
    given = {
        "task_id": name,
        "entrypoint": entrypoint,
        "pool_name": pool,
        "bundles": parse_bundle_words(bundle or ()),
        "strategy": strategy,
        "priority": priority,
        "working_dir": working_dir,
        "env": _variables(env or ()),
        "runtime_env": None if runtime_env is None else _runtime_env(runtime_env),
        "checkpoint_dir": checkpoint_dir,
        "driver_cpus": driver_cpus,
        "driver_gpus": driver_gpus,
        "start_limits": assignments(start_limit or ()) or None,
        "grace_s": grace,
        "over_claim": over_claim,
        "keep_actors": keep_actor,
        "owner": owner,
        "max_retries": retries,
        "on_oom": on_oom,
        "oom_max_memory": oom_max_memory,
        "on_preempted": on_preempted,
        "queue": not now,
        "detached": detached,
    }
    with gateway_to(target) as gateway:
        amounts["cpu"] = _cpus_for(gateway, pool, gpus) if cpus is None else cpus
        given["resources"] = _resources({**amounts, "custom": custom}, bundle)
        _submit(gateway, target, given)
        if not (wait or follow):
            print(name)
            return 0
        note(f"submitted {name}")
        return _awaited(gateway, name, follow=follow)


@command(app)
def adopt(
    target: Target,
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
        float | None, typer.Option(min=0, help="Memory that it claims, in MB.")
    ] = None,
    priority: Annotated[float, typer.Option(help="Its priority.")] = 5.0,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds from SIGTERM to its end when it is evicted."),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(help="To whom it belongs; else the user of this process.")
    ] = None,
) -> None:
    """Make a Ray job that somebody else has started a task, which is accounted and can be evicted."""
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.core.client.job_adoption import adoption
    from schedulemesh.core.client.task_request import Caller
    from schedulemesh.protocol.answers import Listed, Response
    from schedulemesh.protocol.job_logs import ListJobs
    from schedulemesh.protocol.requests import ListExternalUsage

    amounts = {"cpu": cpus, "gpu": gpus, "memory": memory}
    claim = {kind: amount for kind, amount in amounts.items() if amount is not None}
    given = {
        "resources": claim or None,
        "ray_job_id": ray_job_id,
        "pool_name": pool,
        "task_id": task_id or f"ray-job-{ray_job_id}",
        "priority": priority,
        "grace_s": grace,
        "owner": owner,
    }
    with gateway_to(target) as gateway:
        rows = gateway.ask(ListExternalUsage(), Listed).rows
        jobs = gateway.ask(ListJobs(), Listed).rows
        caller = Caller(namespace=target.namespace, runtime_env={})
        gateway.ask(adoption(caller, given, rows, jobs).request, Response)
    print(given["task_id"])


@command(app, "jobs")
def list_jobs(target: Target, view: View, select: Select) -> None:
    """List the jobs that run, wait, or have ended lately."""
    from schedulemesh.protocol.answers import Listed
    from schedulemesh.protocol.job_logs import ListJobs

    def listing(gateway: Gateway) -> Listing:
        rows = gateway.ask(ListJobs(), Listed).rows
        return Listing(kind="jobs", rows=rows, columns=JOBS, name="task_id")

    show(target, view, listing, select)


@command(app)
def logs(
    target: Target,
    task: Annotated[str, typer.Argument(help="The id of a job.")],
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Of this attempt; else of the last one.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=0, help="The last so many lines only.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print also what it writes from now on, until its end.")
    ] = False,
) -> None:
    """Print what the driver of a job has written."""
    from schedulemesh.cli.gateway import gateway_to

    with gateway_to(target) as gateway:
        _print_log(gateway, task, attempt, follow=follow, tail=tail)


def _print_log(
    gateway: Gateway,
    task_id: str,
    attempt: int | None,
    *,
    follow: bool,
    tail: int | None,
    seen: Callable[[str], None] = lambda _state: None,
) -> None:
    """Print the log of a job; ``seen`` is called with its state at each look."""
    from schedulemesh.protocol.answers import JobLog
    from schedulemesh.protocol.log_reader import log_pieces

    def ask(request: ReadJobLog) -> JobLog:
        answer = gateway.ask(request, JobLog)
        seen(answer.state)
        return answer

    for piece in log_pieces(ask, task_id, attempt, follow=follow, tail=tail):
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()


def _submit(gateway: Gateway, target: Target, given: dict[str, object]) -> None:
    """Submit a job. Raises RefusedError."""
    from schedulemesh.core.client.job_request import job_submission
    from schedulemesh.core.client.origin import task_of
    from schedulemesh.core.client.task_request import Caller
    from schedulemesh.protocol.answers import Response
    from schedulemesh.protocol.patience import until_answered

    caller = Caller(
        namespace=target.namespace, runtime_env={}, task_id=task_of(target.name, target.namespace)
    )
    request = job_submission(caller, given).request
    try:
        # It has an id by which the scheduler knows it again.
        until_answered(lambda: gateway.ask(request, Response))
    except KeyboardInterrupt:
        note(
            f"job {given['task_id']!r} may be submitted all the same; `schedulemesh jobs` lists it then"
        )
        raise


def _awaited(gateway: Gateway, name: str, *, follow: bool) -> int:
    """The exit code of a job's driver, once that has ended. ``follow``: print what it writes until then."""
    from schedulemesh.cli.job_ends import QueueNotes, exit_code

    notes = QueueNotes(gateway, name)
    try:
        notes.until_started()
        if follow:
            _print_log(gateway, name, None, follow=True, tail=None, seen=notes.seen)
        return exit_code(gateway, name, notes.until_started)
    except KeyboardInterrupt:
        note(
            f"job {name!r} is not ended by this; `schedulemesh logs {name} --follow` shows what it writes, "
            f"`schedulemesh cancel {name}` ends it"
        )
        raise


def _cpus_for(gateway: Gateway, pool_name: str, gpus: float) -> float:
    """The CPUs of a claim that names its GPUs alone: an actor with a GPU holds a CPU in Ray, too, unless it
    says otherwise. Nothing in a pool whose quota has no CPUs.
    """
    from schedulemesh.protocol.answers import Listed
    from schedulemesh.protocol.requests import ListPools

    if not gpus:
        return 0.0
    pools = {row["name"]: row for row in gateway.ask(ListPools(), Listed).rows}
    if pool_name in pools and not pools[pool_name]["resources"].get("cpu"):
        note(
            f"pool {pool_name!r} has no CPU quota, so the job claims no CPUs; its actors have to say "
            "num_cpus=0"
        )
        return 0.0
    return float(math.ceil(gpus))


def _resources(amounts: dict[str, object], bundles: list[str] | None) -> dict[str, object] | None:
    """What the options ask for; None where bundles alone do."""
    given = {kind: amount for kind, amount in amounts.items() if amount}
    return given if given or not bundles else None


def parse_bundle_words(words: Iterable[str]) -> list[dict[str, object]] | None:
    """Bundles from words ``NAME=AMOUNT,…``; None: there are none. What is neither cpu, gpu nor memory is a
    custom resource. Raises InvalidRequestError.
    """
    from schedulemesh.cli.changes import assignments
    from schedulemesh.errors import InvalidRequestError

    found: list[dict[str, object]] = []
    for word in words:
        if not all(sign and name for name, sign, _ in (p.partition("=") for p in word.split(","))):
            raise InvalidRequestError(
                f"--bundle is {word!r}; a part of the claim is NAME=AMOUNT,…, such as cpu=8,gpu=4"
            )
        amounts = assignments(word.split(","))
        own = {name: amount for name, amount in amounts.items() if name in _KINDS}
        custom = {name: amount for name, amount in amounts.items() if name not in _KINDS}
        found.append({**own, "custom": custom} if custom else own)
    return found or None


def _variables(words: Iterable[str]) -> dict[str, str]:
    """Variables from words ``NAME=VALUE``. Raises InvalidRequestError."""
    from schedulemesh.errors import InvalidRequestError

    found = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise InvalidRequestError(f"--env is {word!r}; a variable is NAME=VALUE")
        found[name] = value
    return found


def _runtime_env(given: str) -> object:
    """A runtime environment as the text of a file, or as text. Raises InvalidRequestError."""
    import yaml

    from schedulemesh.errors import InvalidRequestError, shown

    is_file = given.endswith((".yaml", ".yml", ".json")) or (":" not in given and "{" not in given)
    try:
        found = yaml.safe_load(Path(given).read_text("utf-8") if is_file else given)
    except (OSError, ValueError, yaml.YAMLError) as error:
        what = "which cannot be read" if is_file else "which is no YAML"
        raise InvalidRequestError(f"--runtime-env is {shown(given)}, {what}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequestError(
            f"--runtime-env is {shown(given)}; it must be a YAML or JSON file with names and values, or such "
            "a text, as {env_vars: {A: b}}"
        )
    return found
