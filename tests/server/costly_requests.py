"""What one request costs the others: every call with the most expensive arguments that are allowed, one
request at a time, beside an honest caller that reads, submits and changes something.

``python -m tests.server.costly_requests [seconds [words]]`` measures each request for so many seconds
(default 3), or those whose name has one of the words, on a scheduler with 5,000 waiting tasks, 300 running
ones, their history and 10,000 recorded changes. The honest caller's percentiles are compared with those
beside a client that sends a cheap request as often as it is answered, so that the clients take the same of
the processors. Supervisor, HTTP server and clients are processes of their own, which share the processors of
the machine. The longest portions are what each of them does without serving anybody else, in
milliseconds on a processor: unlike the percentiles they do not depend on what else the machine does. Those
above ``MOST_MS`` are listed at the end, and it exits with 1.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.audit import MAX_ROWS as MAX_AUDIT
from schedulemesh.api.audit import QueryAudit
from schedulemesh.api.history import EVENT_KINDS, MAX_ROWS, QueryEvents, QueryHistory, QueryUsage
from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.metrics import GetMetrics
from schedulemesh.api.pages import MAX_LIMIT, MAX_ORDER, MAX_SORTED, ListPage, PageQuery
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.preemption import MAX_PREEMPTIONS, ListPreemptions
from schedulemesh.api.queue import ListQueue
from schedulemesh.api.rows import scalar_fields
from schedulemesh.api.states import ListSavedStates
from schedulemesh.api.tasks import (
    MAX_BUNDLES_TOGETHER,
    MAX_SUBMISSIONS,
    CancelTasks,
    ListTasks,
    SubmitMany,
    SubmitTask,
    WaitTasks,
    WaitUntil,
)
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.config.label_rules import MAX_RULES
from schedulemesh.core.backend.process_tuning import collect_garbage_rarely, switch_threads_often
from schedulemesh.domain.payloads import LeasePayload
from schedulemesh.domain.placement import (
    MAX_BUNDLES,
    MAX_SIZES,
    MAX_UNLIKE_BUNDLES,
    PLACEMENT_STRATEGIES,
)
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from schedulemesh.server.app import API, MSGPACK
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.guard import MAX_BODY, MAX_JSON
from schedulemesh.server.reads import LISTINGS, SINGLES
from tests.runtime.composition import InThread
from tests.server.api_process import ApiProcess
from tests.server.portions import Portions
from tests.server.work import CLASS, ask, key_of, submission

WAITING, RUNNING, RECORDED = 5_000, 300, 10_000
#: Seconds between two explanations for which the honest caller asks.
EXPLAINS_S = 1.0
#: Fields whose values are found out for each row: the most expensive to sort by.
COSTLY_FIELDS = (
    "reason",
    "cannot_start",
    "expected_duration",
    "run_limit_s",
    "kind",
    "name",
    "number",
)
#: The longest portion of work of either loop, in ms on a processor.
MOST_MS = 25.0
#: The status of a request that is refused before all of it was sent.
CLOSED = "closed"
#: A request that costs others nothing worth mentioning.
CHEAP = "cheap"


class Costly(NamedTuple):
    """A request that is sent as it is."""

    name: str
    method: str
    path: str
    content: bytes = b""
    kind: str = "application/json"


def read(path: str, name: str = "") -> Costly:
    return Costly(name or path, "GET", API + path)


def packed(request: Any, name: str = "") -> Costly:
    data = encode_request(request)
    return Costly(
        f"packed {name or type(request).__name__}", "POST", f"{API}/requests", data, MSGPACK
    )


def packed_junk(name: str, content: Any) -> Costly:
    data = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    return Costly(f"packed {name}", "POST", f"{API}/requests", data[:MAX_BODY], MSGPACK)


def body(method: str, path: str, content: Any, name: str = "") -> Costly:
    data = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Costly(f"{method} {path} {name or f'{len(data):,} bytes'}", method, API + path, data)


def costly_reads() -> Iterator[Costly]:
    """Every call that reads, with the most rows, in each order, and with the most parameters."""
    for listing in LISTINGS:
        fields = scalar_fields(listing.row)
        yield read(f"{listing.path}?limit={MAX_LIMIT}")
        for field in (f for f in ("priority", "reason", "waiting_time", "position") if f in fields):
            yield read(f"{listing.path}?limit={MAX_LIMIT}&sort=-{field}")
        costly = sorted(fields, key=lambda field: field not in COSTLY_FIELDS)[:MAX_SORTED]
        yield read(f"{listing.path}?limit={MAX_LIMIT}&sort={','.join(costly)}")
        yield read(f"{listing.path}?limit=1&sort=" + ",".join(f"-{f}" for f in fields))
        one = listing.key[0]
        many = "&".join(f"{one}={number}" for number in range(MAX_NAMES - 1))
        yield Costly(
            f"{listing.path} with {MAX_NAMES:,} filters", "GET", f"{API}{listing.path}?{many}"
        )
        if listing.missing is not None:
            yield read(f"{listing.path}/none")
    for single in SINGLES:
        yield read(
            single.path.replace("{pool_name:name}", "p").replace("{task_id:name}", "waits-4999")
        )
    yield read("/tasks/runs-0")
    yield Costly("/metrics", "GET", "/metrics")
    yield Costly("/metrics?agents=true", "GET", "/metrics?agents=true")
    yield read("/openapi.json")
    kinds = "&".join(f"kind={kind}" for kind in EVENT_KINDS)
    yield read(f"/events?limit={MAX_LIMIT}&{kinds}")
    yield read(f"/events?limit={MAX_LIMIT}&task_id=none")
    yield read(f"/history?limit={MAX_LIMIT}&with_events=true&since=0")
    yield read(f"/history?limit={MAX_LIMIT}&label=a=b&label=team=y&since=0")
    yield read("/history?limit=1000&owner=none&since=0")
    labels = "&".join(f"label=k{number}=v" for number in range(MAX_NAMES - 1))
    yield read(f"/tasks?{labels}", f"/tasks with {MAX_NAMES:,} labels")
    yield read(f"/history?{labels}", f"/history with {MAX_NAMES:,} labels")
    long = "n" * 60_000
    yield read(f"/tasks?{long}=1", "/tasks with a long parameter")
    yield read(f"/tasks?task_id={long}", "/tasks with a long value")
    yield read(f"/tasks?reason={long}", "/tasks with a long reason")
    yield read(f"/tasks?sort={'-priority,' * 6_000}", "/tasks with a long sort")
    yield read(f"/tasks?cursor={'W1tb' * 15_000}", "/tasks with a deep cursor")
    yield read(f"/tasks/{long}", "/tasks/ and a long name")
    yield read(f"/queue?pool_name={long[:253]}", "/queue of a pool that is none")
    yield read(f"/events?limit={MAX_LIMIT}&kind={long}", "/events of a long kind")
    yield read("/events?after=1&limit=1000&task_id=none", "/events, nothing found")
    for by in ("pool", "owner", "label"):
        yield read(f"/usage?by={by}&since=0&limit={MAX_LIMIT}")
        yield read(f"/usage?by={by}&since=0&until=99999999999&limit={MAX_LIMIT}")


def costly_changes() -> Iterator[Costly]:
    """Changes with the largest bodies, and evaluations."""
    name = "n" * 250
    labels = {f"k{i}": "v" for i in range(5_000)}
    yield body(
        "POST", "/tasks/cancel", {"task_ids": [f"{i}-{name}" for i in range(MAX_NAMES)]}, "1,000"
    )
    yield body("POST", "/tasks/cancel", {"task_ids": ["t"] * (MAX_JSON // 5)})
    yield body("POST", "/orphans/end", {"names": [f"{i}-{name}" for i in range(MAX_NAMES)]})
    yield body("PATCH", "/policy", {"protected_pools": ["p"] * 200_000})
    rules = {f"k{i}": {"a": ["b"]} for i in range(MAX_RULES)}
    yield body("PATCH", "/policy", {"label_preemption_rules": rules}, "rules")
    chain = {"k": {f"v{i}": [f"v{i + 1}"] for i in range(MAX_RULES)}}
    yield body("PATCH", "/policy", {"label_preemption_rules": chain}, "a chain of rules")
    dense = {"k": {f"v{i}": [f"v{j}" for j in range(i + 1, 60)] for i in range(60)}}
    yield body("PATCH", "/policy", {"label_preemption_rules": dense}, "dense rules")
    yield body(
        "PATCH",
        "/policy",
        {"label_preemption_rules": {f"k{i}": {"a": ["b"]} for i in range(30_000)}},
        "too many rules",
    )
    yield read("/policy", "/policy with rules")
    wants = {"priority": 99, "pool_name": "p", "limit": 10_000, "resources": {"cpu": 200}}
    yield body("POST", "/evaluations", wants, "with rules")
    yield body("PATCH", "/policy", {"label_preemption_rules": {}}, "no rules")
    pools = [f"{i}-{name}"[:250] for i in range(4_000)]
    yield body("PATCH", "/policy", {"protected_pools": pools}, "4,000 pools")
    yield body("POST", "/evaluations", wants, "with protected pools")
    yield body("PATCH", "/policy", {"protected_pools": []}, "no pools")
    yield body("PATCH", "/policy", {"u" * (MAX_JSON - 100): 1}, "a long field")
    yield body("PATCH", "/policy", {f"u{i}": 1 for i in range(60_000)}, "many fields")
    yield body("PATCH", "/policy", {"preemption_aggressiveness": "h" * (MAX_JSON - 100)}, "a word")
    yield body("PUT", "/pools/q", {"labels": {f"k{i}": "v" * 200 for i in range(3_000)}})
    yield body("PUT", "/pools/q", {"resources": {"custom": {f"k{i}": 1 for i in range(40_000)}}})
    token = {"name": "q", "role": "submitter", "owner": "o", "pools": ["p"] * 50_000}
    yield body("POST", "/tokens", token)
    yield body("POST", "/tokens", {**token, "pools": [f"p{i}" for i in range(900)]}, "900 pools")
    job: dict[str, Any] = {
        "task_id": "j",
        "entrypoint": ["x"] * 200_000,
        "pool_name": "p",
        "queue": True,
    }
    yield body("POST", "/jobs", job)
    yield body("POST", "/jobs", {**job, "entrypoint": ["x"], "bundles": [{"cpu": 1}] * 60_000})
    bundles = [{"cpu": 1}] * 1_000
    yield body("POST", "/jobs", {**job, "entrypoint": ["x"], "bundles": bundles}, "1,000 bundles")
    job["entrypoint"] = ["x"]
    archive = "A" * (20 * MAX_JSON)
    yield body("POST", "/jobs", {**job, "archive": archive}, "an archive in JSON")
    lists = [[]] * 300_000
    yield body("POST", "/jobs", {**job, "runtime_env": {"a": lists}}, "300,000 lists")
    numbers = [1] * 11_000_000
    yield body("POST", "/jobs", {**job, "runtime_env": {"a": numbers}}, "11,000,000 numbers")
    yield body("POST", "/jobs", {**job, "runtime_env": {"a": numbers[:99_000]}}, "99,000 numbers")
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    yield body("POST", "/jobs", {**job, "runtime_env": {"a": deep}}, "a deep environment")
    yield body("POST", "/jobs", {**job, "labels": labels}, "5,000 labels")
    selector = {f"k{i}": {"in": [f"v{j}" for j in range(100)]} for i in range(500)}
    yield body("POST", "/jobs", {**job, "pool_selector": selector}, "a large selector")
    env = {f"K{i}": "v" * 50 for i in range(15_000)}
    yield body("POST", "/jobs", {**job, "env": env}, "15,000 variables")
    packages = {"pip": [f"p{i}==1.0" for i in range(50_000)]}
    yield body("POST", "/jobs", {**job, "runtime_env": packages}, "50,000 packages")
    yield body("PUT", "/pools/q", {"pg_pool_config": {"bundles": lists}}, "300,000 lists")
    yield body("PUT", "/pools/q", {"pg_pool_config": {f"u{i}": 1 for i in range(60_000)}}, "fields")
    values = {f"k{i}": [f"v{j}" for j in range(100)] for i in range(500)}
    yield body("POST", "/tokens", {**token, "pools": [], "label_values": values}, "label values")
    lease = {"task_id": "l", "pool": "p", "groups": [[{"cpu": 1}]] * 30_000, "ttl_s": 60}
    yield body("POST", "/leases", lease)
    yield body("POST", "/evaluations", {"priority": 1e9, "pool_name": "p", "limit": 10_000})
    yield body("POST", "/evaluations", wants, "200 CPUs")
    yield body("POST", "/evaluations", {**wants, "labels": labels}, "5,000 labels")
    yield body("POST", "/agents/check", {"timeout": 5})
    for change in CHANGES[:3]:
        path = change.path.split("{")[0].rstrip("/")
        yield body(change.method, path, [0] * (MAX_JSON // 3), "a list")
    yield body("PATCH", "/policy", b"[" * MAX_JSON, "open lists")
    yield body("PATCH", "/policy", b'{"a":"' + b"\\u00e9" * 170_000 + b'"}', "escapes")


def costly_packed() -> Iterator[Costly]:
    """Packed requests, which may be larger."""
    yield packed(CancelTasks(task_ids=tuple(f"t{i}" for i in range(MAX_NAMES))))
    ids = tuple(f"waits-{i}" for i in range(MAX_NAMES))
    yield packed(WaitTasks(task_ids=ids, until=WaitUntil.ENDED, enough=MAX_NAMES, wait_s=0.0))
    tasks = tuple(submission(f"again-{i}") for i in range(MAX_SUBMISSIONS))
    yield packed(SubmitMany(submissions=tasks, blobs={key_of(CLASS): CLASS}), "SubmitMany again")
    blob = b"x" * (MAX_BODY - 100_000)
    yield packed(SubmitMany(submissions=tasks[:1], blobs={key_of(blob): blob}), "16 MB to store")
    yield packed(dry_run(1), "dry run of 1 CPU")
    yield packed(dry_run(200), "dry run of 200 CPUs")
    for request in (ListTasks(), ListAgents(), ListQueue(), ListJobs(), ListSavedStates()):
        yield packed(request)
    yield packed(ListPreemptions(limit=MAX_PREEMPTIONS))
    yield packed(QueryAudit(limit=MAX_AUDIT))
    yield packed(QueryAudit(limit=MAX_AUDIT, token="nobody"), "QueryAudit, nothing found")
    yield packed(QueryHistory(limit=MAX_ROWS, with_events=True, since=0.0))
    yield packed(QueryHistory(limit=MAX_ROWS, owner="nobody"), "QueryHistory, nothing found")
    yield packed(QueryUsage(by="label", since=0.0))
    yield packed(QueryEvents(limit=MAX_ROWS))
    yield packed(GetMetrics(agents=True))
    order = tuple((field, True) for field in ("reason", "waiting_time", "priority", "task_id"))
    values = ids
    few = values[: MAX_NAMES // 80]
    fields = tuple((name, few) for name in ("task_id", "name", "owner", "pool_name") * 20)
    page = PageQuery(order=order, limit=MAX_LIMIT)
    yield packed(ListPage(listing="tasks", page=page))
    page = PageQuery(order=order * 250, limit=MAX_LIMIT)
    yield packed(ListPage(listing="tasks", page=page), "ListPage by 1,000 fields")
    order = (*((field, True) for field in COSTLY_FIELDS), *order)[:MAX_ORDER]
    page = PageQuery(order=order, limit=MAX_LIMIT)
    yield packed(ListPage(listing="queue", page=page), "ListPage by the most fields")
    page = PageQuery(order=(("task_id", False),), fields=fields, limit=MAX_LIMIT)
    yield packed(ListPage(listing="queue", page=page), "ListPage with 80 filters")
    yield packed_junk(
        "cancel of 8,000,000", {"request": "cancel_tasks", "task_ids": ["t"] * 8_000_000}
    )
    yield packed_junk(
        "junk of 5,000,000 lists", {"request": "wait_tasks", "junk": [[]] * 5_000_000}
    )
    yield packed_junk("16 MB of nothing", b"\xdd" + b"\xff" * (MAX_BODY - 1))
    yield packed_junk("1 MB of lists", {"request": "wait_tasks", "task_ids": [[]] * 1_000_000})
    blobs = {"request": "submit_many", "blobs": {f"{i:064}": b"" for i in range(200_000)}}
    yield packed_junk("200,000 empty blobs", blobs)
    small = {key_of(str(i).encode()): str(i).encode() for i in range(9_000)}
    yield packed(SubmitMany(submissions=tasks[:1], blobs=small), "9,000 small blobs")
    members = {
        "request": "restore_task",
        "request_id": "r",
        "saved": {"members": [None] * 8_000_000},
    }
    yield packed_junk("restore of 8,000,000 members", members)
    junk = {"request": "restore_task", "junk": [[]] * 8_000_000}
    yield packed_junk("restore with 8,000,000 lists", junk)
    change = {"request": "change_policy", "client": "c", "request_id": "r"}
    lists = [[]] * 900_000
    yield packed_junk("policy of 900,000 lists", {**change, "changes": {"a": lists}})
    yield packed_junk("policy of 90,000 lists", {**change, "changes": {"options": lists[:90_000]}})
    deep: Any = []
    for _ in range(450):
        deep = [deep]
    yield packed_junk("policy of deep lists", {**change, "changes": {"protected_pools": deep}})
    chinese = {"a": "\u4e2d" * 300_000}
    yield packed_junk("policy of Chinese text", {**change, "changes": chinese})
    text = {"request": "cancel_tasks", "task_ids": ["t" * 1_000_000]}
    yield packed_junk("cancel of a long name", text)
    yield packed(
        QueryHistory(labels={f"k{i}": "v" for i in range(3_000)}), "QueryHistory by labels"
    )
    names = tuple((name, (*range(10), 5.0)) for name in ("priority",) * 90)
    page = PageQuery(order=(("task_id", False),), fields=names, limit=MAX_LIMIT)
    yield packed(ListPage(listing="tasks", page=page), "ListPage with 90 filters alike")
    page = PageQuery(order=(("labels", False),), fields=(("labels", ("a",)),), limit=MAX_LIMIT)
    yield packed(ListPage(listing="tasks", page=page), "ListPage by labels")
    yield packed(SubmitTask(submission=bundled("b", dry_run=True)), "dry run of 1,000 bundles")
    yield packed(SubmitTask(submission=bundled("b")), "1,000 bundles to the queue")
    yield read("/tasks/b", "/tasks/ of 1,000 bundles")
    gangs = tuple(bundled(f"b-{i}") for i in range(MAX_BUNDLES_TOGETHER // MAX_BUNDLES))
    yield packed(SubmitMany(submissions=gangs), "2 times 1,000 bundles")
    urgent = tuple(bundled(f"u-{i}", priority=99.0) for i in range(len(gangs)))
    yield packed(SubmitMany(submissions=urgent), "2 times 1,000 bundles that would evict")
    yield read("/tasks/u-1", "/tasks/ of one of those")
    shares = parse_resources({"gpu": 0.001})
    sizes = tuple(
        parse_resources({"cpu": 0.01 * (1 + number % MAX_SIZES)}) for number in range(MAX_BUNDLES)
    )
    for strategy in PLACEMENT_STRATEGIES:
        asked = bundled("s", priority=99.0, dry_run=True, strategy=strategy)
        yield packed(SubmitTask(submission=asked), f"dry run of 1,000 bundles {strategy}")
        asked = bundled("s", priority=99.0, dry_run=True, strategy=strategy, parts=500)
        yield packed(SubmitTask(submission=asked), f"dry run of 500 groups {strategy}")
        agent = msgspec.structs.replace(asked.agent, bundles=(shares,) * MAX_BUNDLES)
        asked = msgspec.structs.replace(asked, agent=agent)
        yield packed(
            SubmitTask(submission=asked), f"dry run of 500 groups, 1,000 shares {strategy}"
        )
        for parts in (2, MAX_UNLIKE_BUNDLES // 5, MAX_UNLIKE_BUNDLES // 2):
            asked = bundled("s", priority=99.0, dry_run=True, strategy=strategy, parts=parts)
            agent = msgspec.structs.replace(asked.agent, bundles=sizes[:MAX_UNLIKE_BUNDLES])
            asked = msgspec.structs.replace(asked, agent=agent)
            yield packed(
                SubmitTask(submission=asked), f"dry run of {parts} groups, many sizes {strategy}"
            )
    large = tuple(
        msgspec.structs.replace(one, agent=msgspec.structs.replace(one.agent, bundles=sizes[:20]))
        for one in (bundled(f"l-{number}") for number in range(MAX_SUBMISSIONS))
    )
    yield packed(SubmitMany(submissions=large), "100 times 20 bundles of many sizes")
    yield packed(ListPage(listing="queue", page=page), "ListPage of those")


def bundled(
    task_id: str,
    priority: float = 5.0,
    *,
    dry_run: bool = False,
    strategy: str = "",
    parts: int = 1,
) -> TaskSubmitted:
    """The submission of placement groups with the most bundles."""
    asked: TaskSubmitted = submission(task_id, priority=priority)
    agent = msgspec.structs.replace(
        asked.agent,
        class_key="",
        resources=parse_resources({"cpu": 200}),
        bundles=(parse_resources({"cpu": 0.2}),) * MAX_BUNDLES,
        payload=LeasePayload(ttl_s=60.0, strategy=strategy, parts=parts),
    )
    return msgspec.structs.replace(asked, agent=agent, dry_run=dry_run, queue=not dry_run)


def dry_run(cpus: int) -> SubmitTask:
    """A dry run that needs evictions."""
    asked: TaskSubmitted = submission("dry", priority=99.0, queue=False)
    agent = msgspec.structs.replace(asked.agent, resources=parse_resources({"cpu": cpus}))
    return SubmitTask(
        submission=msgspec.structs.replace(asked, agent=agent, dry_run=True),
        blobs={key_of(CLASS): CLASS},
    )


def hostile(connection: Connection, url: str, token: str) -> None:
    """Send a request again and again until another one comes; then say how many were answered, and how."""
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=120) as client:
        while (request := connection.recv()) is not None:
            count, status = 0, "no answer"
            began = time.monotonic()
            while not connection.poll():
                try:
                    answer = client.request(
                        request.method,
                        request.path,
                        content=request.content,
                        headers={"content-type": request.kind},
                    )
                    status = str(answer.status_code)
                except httpx.TransportError:
                    status = CLOSED  # it is refused before all of it was sent
                count += 1
                connection.send("answered")
            connection.recv()
            connection.send((count, time.monotonic() - began, status))


def honest(connection: Connection, url: str, token: str) -> None:
    """The times in ms of calls that read, submit and change, for as many seconds as come. It explains a task
    now and then: more often it would wait for its own rests, see ``schedulemesh.server.pacing``.
    """
    headers = {"authorization": f"Bearer {token}"}
    number, explains_at = 0, 0.0
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=120) as client:
        while (seconds := connection.recv()) is not None:
            times, until = [], time.monotonic() + seconds
            while time.monotonic() < until:
                number += 1
                one = f"/tasks?task_id=h-{number}"
                if time.monotonic() >= explains_at:
                    one, explains_at = f"/tasks/h-{number}", time.monotonic() + EXPLAINS_S
                job = {
                    "task_id": f"h-{number}",
                    "entrypoint": ["true"],
                    "pool_name": "h",
                    "queue": True,
                }
                calls = (
                    ("GET", "/status", None),
                    ("POST", "/jobs", job),
                    ("GET", one, None),
                    ("POST", f"/tasks/h-{number}/cancel", {}),
                )
                for method, path, content in calls:
                    began = time.perf_counter()
                    client.request(method, API + path, json=content).raise_for_status()
                    times.append(1000 * (time.perf_counter() - began))
                time.sleep(0.005)  # it is no flood
            connection.send(times)


class Client:
    """One of the functions above in a process of its own, with a token of its own: of one token, reads and
    searches wait for each other.
    """

    def __init__(self, work: Any, api: ApiProcess, name: str) -> None:
        self.connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        token = operator_token(api, name)
        self.process = context.Process(target=work, args=(other, api.url, token), daemon=True)
        self.process.start()

    def end(self) -> None:
        self.connection.send(None)
        self.process.join(30)


def operator_token(api: ApiProcess, name: str) -> str:
    """A new token of an operator."""
    answer = httpx.post(
        f"{api.url}{API}/tokens",
        json={"name": name, "role": "operator"},
        headers={"authorization": f"Bearer {api.token}"},
        trust_env=False,
        timeout=60,
    )
    token: str = answer.raise_for_status().json()["token"]
    return token


def prepared(
    folder: Path, waiting: int = WAITING, running: int = RUNNING, recorded: int = RECORDED
) -> tuple[InThread, ApiProcess]:
    """A scheduler with so many tasks that wait and run, a history and recorded changes; and its HTTP API."""
    mesh = InThread(folder / "j.sqlite")
    room = parse_resources({"cpu": running})
    mesh.backend.free = [NodeView(node_id="n1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, EnsurePool(name="p", resources=room, labels={}))
    ask(mesh, EnsurePool(name="h", resources=parse_resources({"cpu": 4}), labels={}))
    for name, number in (("runs", running), ("waits", waiting)):
        for first in range(0, number, MAX_SUBMISSIONS):
            last = min(first + MAX_SUBMISSIONS, number)
            given = tuple(submission(f"{name}-{i}") for i in range(first, last))
            ask(mesh, SubmitMany(submissions=given, blobs={key_of(CLASS): CLASS}))
    api = ApiProcess(mesh, str(folder / "home"))
    mesh.do(recorded_changes(mesh, recorded))
    return mesh, api


async def recorded_changes(mesh: InThread, number: int) -> None:
    """Record so many cancellations."""
    for first in range(0, number, 100):
        await asyncio.gather(
            *(
                mesh.service.ask(encode_request(CancelTasks(task_ids=(f"none-{first + i}",))))
                for i in range(100)
            )
        )


class Row(NamedTuple):
    """What was measured with one request."""

    name: str
    status: str
    #: In ms: of the request itself, of the honest caller, and the longest portions of the two loops.
    each: float
    median: float
    p99: float
    supervisor: float
    http: float


class Measurement:
    def __init__(self, mesh: InThread, api: ApiProcess) -> None:
        self.hostile = Client(hostile, api, "hostile")
        self.honest = Client(honest, api, "honest")
        self.portions, self.api = Portions(mesh.thread), api

    def longest(self) -> list[float]:
        """The longest portions of the supervisor and of the HTTP server since the last call, in ms."""
        return [1000 * s for s in (*self.portions.longest(), self.api.longest_portion())]

    def of(self, request: Costly, seconds: float) -> Row:
        self.hostile.connection.send(request)
        self.hostile.connection.recv()  # it has been answered once
        self.longest()
        self.honest.connection.send(seconds)
        times = self.honest.connection.recv()
        portions = self.longest()
        self.hostile.connection.send("stop")
        while (answer := self.hostile.connection.recv()) == "answered":
            pass
        count, took, status = answer
        p99 = statistics.quantiles(times, n=100)[98]
        each = 1000 * took / max(1, count)
        return Row(request.name, status, each, statistics.median(times), p99, *portions)

    def end(self) -> None:
        self.hostile.end()
        self.honest.end()


def measured(
    mesh: InThread, api: ApiProcess, requests: Sequence[Costly], seconds: float
) -> tuple[list[Row], Row]:
    """What was measured with each request, and in the middle with the cheap one."""
    cheap = Costly(CHEAP, "GET", f"{API}/queue_policy")
    measurement = Measurement(mesh, api)
    rows, bases = [], []
    for number, request in enumerate(requests):
        if number % 10 == 0:
            bases.append(measurement.of(cheap, 2 * seconds))
            shown(bases[-1], bases[-1])
        rows.append(measurement.of(request, seconds))
        shown(rows[-1], bases[-1])
    measurement.end()
    return rows, sorted(bases, key=lambda row: row.p99)[len(bases) // 2]


def too_long(rows: Iterable[Row]) -> list[Row]:
    """Those with a longer portion than there may be, or that were not answered at all, the worst first."""
    bad = [
        row
        for row in rows
        if max(row.supervisor, row.http) > MOST_MS
        or not (row.status.isdigit() or row.status == CLOSED)
    ]
    return sorted(bad, key=lambda row: -max(row.supervisor, row.http))


def main(seconds: float, words: list[str]) -> int:
    requests = [*costly_reads(), *costly_changes(), *costly_packed()]
    requests = [one for one in requests if not words or any(word in one.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        mesh, api = prepared(Path(folder))
        # As the process of a supervisor has them.
        gc.collect()
        collect_garbage_rarely()
        switch_threads_often()
        rows, base = measured(mesh, api, requests, seconds)
        api.close()
        mesh.close()
    print(
        f"\nworst first; the base is {base.name}: median {base.median:.1f} ms, p99 {base.p99:.1f} ms"
    )
    for row in sorted(rows, key=lambda row: -row.p99):
        shown(row, base)
    bad = too_long(rows)
    print(f"\n{len(bad)} of {len(rows)} have a portion above {MOST_MS:g} ms")
    for row in bad:
        shown(row, base)
    return 1 if bad else 0


def shown(row: Row, base: Row) -> None:
    print(
        f"{row.p99 / base.p99:6.2f} x  p99 {row.p99:7.1f}  p50 {row.median:6.1f} ms  each {row.each:8.1f}  "
        f"longest portions {row.supervisor:6.1f} {row.http:6.1f}  {row.status:9} {row.name[:90]}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(float((sys.argv[1:] or [3])[0]), sys.argv[2:]))
