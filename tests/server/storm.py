"""An HTTP storm: every call, with the token of every role and without one, with the largest bodies that are
allowed and larger ones, from thirty clients at once; meanwhile an honest caller is never refused.

``python -m tests.server.storm [seconds [seed]]`` prints the 99th percentile of the honest caller's times in
the storm as a ratio to that beside as many clients that read something cheap as often as they are answered.
Thirty clients that always wait for an answer keep the server busy whatever they ask, and supervisor, server
and clients, which are processes of their own, share the machine's processors: only the difference between
the two is due to what the storm asks for. ``tests.server.costly_requests`` measures one kind of request at a
time. ``dashboards`` in place of the seconds measures three dashboards, each of which reads once a second
while 5,000 tasks wait.
"""

from __future__ import annotations

import gc
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import msgspec

from schedulemesh.api.agents import ListAgents
from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.nodes import CordonNode
from schedulemesh.api.pools import EnsurePool
from schedulemesh.api.queue import ListQueue
from schedulemesh.api.states import ListSavedStates
from schedulemesh.api.tasks import MAX_SUBMISSIONS, CancelTasks, ListTasks, SubmitMany
from schedulemesh.api.values import MAX_NAMES
from schedulemesh.core.backend.process_tuning import collect_garbage_rarely, switch_threads_often
from schedulemesh.domain.resources import parse_resources
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime.backend import NodeView
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.guard import MAX_BODY, MAX_JSON
from schedulemesh.server.reads import LISTINGS, SINGLES
from tests.runtime.composition import InThread
from tests.server.api_process import ApiProcess
from tests.server.work import CLASS, ask, key_of, submission

CLIENTS, WAITING = 30, 5_000
ROLES = ("viewer", "submitter", "operator", "")
#: What a hostile request may be answered with: the server neither fails nor goes away.
EXPECTED = {200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 503}


def bodies():
    """Bodies of all sizes, as JSON."""
    name = "名" * 253
    yield {}
    for count in (1, MAX_NAMES, 5_000):
        yield {"task_ids": [f"{i}"[:4] + name[:200] for i in range(count)]}
    yield {"names": ["n" * 200] * MAX_NAMES}
    yield {"labels": {f"k{i}": "v" * 200 for i in range(3_000)}, "resources": {"cpu": 1}}
    yield {"protected_pools": ["p"] * 200_000}
    yield {"label_preemption_rules": {f"k{i}": {"a": ["b"]} for i in range(20_000)}}
    yield {"name": name, "role": "submitter", "owner": "o", "pools": ["p"] * 50_000}
    yield [0] * (MAX_JSON // 3)
    yield "x" * (MAX_JSON - 10)


def packed():
    """Packed requests: right ones of the largest size, and hostile ones."""
    yield encode_request(CancelTasks(task_ids=tuple(f"t{i}" for i in range(MAX_NAMES))))
    yield from (encode_request(many("storm", first)) for first in range(0, 1_000, 250))
    lists = (ListTasks(), ListAgents(), ListQueue(), ListJobs(), ListSavedStates())
    yield from map(encode_request, lists)
    yield msgspec.msgpack.encode({"request": "cancel_tasks", "task_ids": ["t"] * 8_000_000})
    yield msgspec.msgpack.encode({"request": "wait_tasks", "junk": [[]] * 5_000_000})
    yield b"\xdd" + b"\xff" * (MAX_BODY - 1)


def many(name, first):
    given = [submission(f"{name}-{first + i}", pool="p") for i in range(MAX_SUBMISSIONS)]
    return SubmitMany(submissions=tuple(given), blobs={key_of(CLASS): CLASS})


class Contents:
    """Everything that hostile calls send, made once: making it takes longer than sending it."""

    def __init__(self):
        self.json = [msgspec.json.encode(body) for body in bodies()]
        self.packed = list(packed())


def hostile_call(client, chance, contents):
    """One hostile call; its status. One in twelve has a packed body, which may be large; half of the others
    read.
    """
    kind = chance.randrange(12)
    if kind == 0:
        headers = {"content-type": "application/msgpack"}
        content = chance.choice(contents.packed)
        return client.post("/api/v1/requests", content=content, headers=headers).status_code
    if kind < 7:
        call = chance.choice((*LISTINGS, *SINGLES))
        path = call.path.split("{")[0] + ("none" if "{" in call.path else "")
        query = chance.choice(
            ("", "?limit=1000", "?sort=-priority&limit=1000", f"?task_id={'x' * 5_000}")
        )
        return client.get(f"/api/v1{path}{query}").status_code
    change = chance.choice(CHANGES)
    path = "/".join("none" if part.startswith("{") else part for part in change.path.split("/"))
    content = chance.choice(contents.json)
    return client.request(change.method, f"/api/v1{path}", content=content).status_code


class Storm:
    """Clients that call until they are told to stop."""

    def __init__(self, url, tokens, seed):
        self.statuses, self.stop = Counter(), threading.Event()
        #: None: they read something cheap, with tokens that may.
        self.contents = None if seed is None else Contents()
        seed = seed or 0
        tokens = tokens if self.contents else [token for token in tokens if token]
        self.threads = [
            threading.Thread(target=self.run, args=(url, tokens[i % len(tokens)], seed + i))
            for i in range(CLIENTS)
        ]

    def run(self, url, token, seed):
        chance = random.Random(seed)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        while not self.stop.is_set():
            try:
                with httpx.Client(
                    base_url=url, headers=headers, trust_env=False, timeout=120
                ) as client:
                    while not self.stop.is_set():
                        if self.contents is None:
                            status = client.get("/api/v1/queue_policy").status_code
                        else:
                            status = hostile_call(client, chance, self.contents)
                        self.statuses[status] += 1
            except httpx.TransportError:
                # A body that is too large is refused before it was sent.
                self.statuses["closed"] += 1


def dashboard(url, token, path):
    """Read a page once a second until this process is ended."""
    with httpx.Client(
        base_url=url, headers={"authorization": f"Bearer {token}"}, trust_env=False
    ) as client:
        while True:
            began = time.monotonic()
            client.get(path).raise_for_status()
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))  # a page reads once a second


def honest(url, token, seconds):
    """The times of a caller that reads and changes, in ms. Raises where it is refused."""
    times = []
    headers, until = {"authorization": f"Bearer {token}"}, time.monotonic() + seconds
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        while time.monotonic() < until:
            for method, path in (("GET", "/api/v1/status"), ("PUT", "/api/v1/nodes/n1/cordon")):
                began = time.perf_counter()
                client.request(method, path).raise_for_status()
                times.append(1000 * (time.perf_counter() - began))
            time.sleep(0.005)  # it is no flood
    return times


def in_process(*words):
    """This module in another process, which does not share the server's lock on Python."""
    command = [sys.executable, "-m", "tests.server.storm", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measured(url, token, seconds):
    """The 50th and 99th percentile of an honest caller, in ms."""
    with in_process("honest", url, token, seconds) as caller:
        output, _ = caller.communicate()
    if caller.returncode:
        raise SystemExit("the honest caller was refused")
    times = msgspec.json.decode(output)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def served(folder):
    """A scheduler on which 5,000 tasks wait, its HTTP API, and a token of every role."""
    mesh = InThread(folder / "j.sqlite")
    room = parse_resources({"cpu": 4})
    mesh.backend.free = [NodeView(node_id="n1", total=room, free=room, labels={})]
    mesh.do(mesh.running.monitor.observe())
    ask(mesh, CordonNode(node_id="n1", cordoned=True))
    ask(mesh, EnsurePool(name="p", resources=parse_resources({"cpu": 4}), labels={}))
    for first in range(0, WAITING, MAX_SUBMISSIONS):
        ask(mesh, many("waits", first))
    api = ApiProcess(mesh, str(folder / "home"))
    # As the process of a supervisor has them.
    gc.collect()
    collect_garbage_rarely()
    switch_threads_often()
    return mesh, api, {"": "", **dict(issued(api))}


def issued(api):
    """A token of every role, by the role."""
    headers = {"authorization": f"Bearer {api.token}"}
    for role in ROLES[:-1]:
        body = {"name": role, "role": role, "owner": "ada" if role == "submitter" else ""}
        url = f"{api.url}/api/v1/tokens"
        answer = httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60)
        yield role, answer.raise_for_status().json()["token"]


def measured_beside(api, tokens, seconds, seed):
    """The honest caller's percentiles beside the clients of a storm, and the statuses of their answers.
    Without a seed they read something cheap.
    """
    given = ",".join(tokens[role] for role in ROLES)
    with in_process("storm", api.url, given, seconds + 3, seed) as storm:
        time.sleep(2)  # all clients of the storm have begun by then
        during = measured(api.url, api.token, seconds)
        output, _ = storm.communicate()
    return during, msgspec.json.decode(output)


def main(seconds, seed):
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        mesh, api, tokens = served(Path(folder))
        alone = measured(api.url, api.token, seconds)
        cheap, reads = measured_beside(api, tokens, seconds, None)
        during, statuses = measured_beside(api, tokens, seconds, seed)
        after = measured(api.url, api.token, seconds)
        report("alone", alone)
        report(f"beside {CLIENTS} clients that read {sum(reads.values()):,} times", cheap)
        report(f"in a storm of {CLIENTS} clients", during, cheap)
        report("afterwards", after, alone)
        print(
            f"hostile answers: {sum(statuses.values()):,};",
            ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items())),
        )
        unexpected = {s for s in statuses if s != "closed" and int(s) not in EXPECTED}
        api.close()
        mesh.close()
        if unexpected:
            raise SystemExit(f"unexpected answers: {unexpected}")


def dashboards(seconds):
    with tempfile.TemporaryDirectory() as folder:
        mesh, api, _ = served(Path(folder))
        before = measured(api.url, api.token, seconds)
        paths = ("/api/v1/tasks", "/api/v1/tasks?sort=-priority", "/api/v1/queue")
        readers = [in_process("dashboard", api.url, api.token, path) for path in paths]
        try:
            time.sleep(2)  # all pages have been read by then
            during = measured(api.url, api.token, seconds)
        finally:
            for reader in readers:
                reader.kill()
                reader.communicate()
        report("alone", before)
        report(f"with {len(paths)} dashboards, {WAITING:,} tasks waiting", during, before)
        api.close()
        mesh.close()


def report(what, found, base=None):
    median, p99 = found
    ratio = "" if base is None else f", ratio of p99 {p99 / base[1]:.2f}"
    print(f"{what}: median {median:.1f} ms, p99 {p99:.1f} ms{ratio}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["honest", url, token, seconds]:
            print(msgspec.json.encode(honest(url, token, float(seconds))).decode())
        case ["dashboard", url, token, path]:
            dashboard(url, token, path)
        case ["storm", url, tokens, seconds, seed]:
            storm = Storm(url, tokens.split(","), None if seed == "None" else int(seed))
            for thread in storm.threads:
                thread.start()
            time.sleep(float(seconds))  # the storm's length
            storm.stop.set()
            for thread in storm.threads:
                thread.join()
            print(msgspec.json.encode({str(k): v for k, v in storm.statuses.items()}).decode())
        case ["dashboards"]:
            dashboards(10.0)
        case given:
            main(
                float((given or [20])[0]),
                int(given[1]) if len(given) > 1 else random.randrange(10**6),
            )
