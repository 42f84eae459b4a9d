"""Measure the page with 2,000 tasks on 300 nodes: ``python -m tests.server.page_marks`` (needs Chromium).

The API runs in a process of its own over the supervisor's socket, as in production; the supervisor in this
one, on a fake backend. The marks: a screen is painted within 0.5 s, all that a browser loads has at most
150 kB compressed, a change is seen within 1 s, and with 200 open pages the API's process has at most 200 MB
and the 99th percentile of decisions rises by at most 5 ms.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil

from benchmarks.rows import at_most, note, print_table
from schedulemesh.api.tasks import CancelTask
from schedulemesh.core.backend.process_tuning import collect_garbage_rarely, switch_threads_often
from tests.runtime.composition import InThread
from tests.server.api_process import ApiProcess
from tests.server.chromium import Chromium, chromium
from tests.server.loop_costs import LoopCosts
from tests.server.scenes import large, submit
from tests.server.test_page import SCREENS
from tests.server.test_page_browser import appears
from tests.server.work import ask

PAGES, PEOPLE, PAINTS, CHANGES = 200, 10, 3, 10
#: Rounds with and without open pages, in turn, and the decisions of each: a submission and its cancellation.
ROUNDS, LIVES, PAUSE_S = 6, 60, 0.02
#: Requests that are those of the decisions themselves.
OF_DECISIONS = ("SubmitTask", "CancelTask")
PATHS = (*(path for path in SCREENS if path != "/task"), "/task?id=task-1999")


def main():
    """Print the table."""
    logging.disable()  # alerts about two thousand agents that nobody runs
    as_supervisors_process()
    if chromium() is None:
        sys.exit("there is no Chromium here (Debian: apt-get install chromium)")
    with TemporaryDirectory() as name:
        folder = Path(name)
        mesh = InThread(folder / "journal.sqlite")
        large(mesh)
        api = ApiProcess(mesh, str(folder / "home"))
        try:
            with httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client:
                form = {"token": api.token}
                client.post("/sign-in", data=form, headers={"origin": api.url})
                tokens = [token_of(client, api, number) for number in range(PEOPLE)]
                marks = (loaded(client), with_pages(api, mesh, tokens), painted(api, client, mesh))
                for rows in marks:
                    for row in rows:
                        print_table([row])
        finally:
            api.close()
            mesh.close()


def as_supervisors_process():
    """Have this process collect garbage and switch threads as that of a supervisor does."""
    collect_garbage_rarely()
    switch_threads_often()


def token_of(client, api, number):
    """The token of somebody who only looks."""
    body = {"name": f"person-{number}", "role": "viewer"}
    headers = {"authorization": f"Bearer {api.token}"}
    return client.post("/api/v1/tokens", json=body, headers=headers).json()["token"]


def loaded(client):
    """All that a browser loads for the largest screen."""
    sizes = {path: len(gzip.compress(client.get(path).content)) for path in PATHS}
    html = client.get("/").text
    parts = set(re.findall(r'(?:href|src)="(/[\w.-]+\.(?:css|js|svg))"', html))
    files = sum(len(gzip.compress(client.get(part).content)) for part in parts)
    largest = max(sizes, key=sizes.get)
    size = (files + sizes[largest]) / 1000
    yield at_most("all that is loaded, compressed", size, 150, " kB", f"{largest} is the largest")


def painted(api, client, mesh):
    """How long each screen takes from the click to its first paint, and a change until it is seen."""
    browser = Chromium()
    try:
        tab = browser.tab()
        for name, value in client.cookies.items():
            tab.send("Network.setCookie", url=api.url, name=name, value=value, httpOnly=True)
        times = {path: [paint_s(tab, f"{api.url}{path}") for _ in range(PAINTS)] for path in PATHS}
        for path, seconds in times.items():
            spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
            yield at_most(f"{path}: first paint", statistics.median(seconds), 0.5, " s", spread)
        tab.open(f"{api.url}/queue?owner=seen")
        delays = [seen_s(tab, mesh, f"seen-{number}") for number in range(CHANGES)]
        yield at_most(
            "a change is seen after",
            max(delays),
            1.0,
            " s",
            f"median {statistics.median(delays):.2f}",
        )
    finally:
        browser.close()


def paint_s(tab, url):
    """Seconds to the first paint of a page, which is opened after a pause, so that nothing is kept of it."""
    time.sleep(1.0)  # as long as an answer is shown again
    tab.open(url)
    return tab.run(
        "new Promise(kept => new PerformanceObserver(list => "
        "kept(list.getEntriesByName('first-contentful-paint')[0].startTime / 1000))"
        ".observe({type: 'paint', buffered: true}))"
    )


def seen_s(tab, mesh, task_id):
    """Seconds from the submission of a task until an open page shows it."""
    time.sleep(1.0)  # pages that have just been read are read again a little later
    began = time.monotonic()
    submit(mesh, task_id, "team-00", gpu=8, priority=0.5, owner="seen")
    tab.run(appears(task_id))
    return time.monotonic() - began


def with_pages(api, mesh, tokens):
    """What open pages cost decisions, and how large the API's process is with them."""
    # Browsers are on other machines, so these take a processor only where nobody else wants it.
    command = [
        "nice",
        "-n",
        "10",
        sys.executable,
        "-m",
        "tests.server.open_pages",
        api.url,
        *tokens,
    ]
    pipe = subprocess.PIPE
    pages = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def be(count):
        pages.stdin.write(f"{count}\n")
        pages.stdin.flush()
        return int(pages.stdout.readline())

    plain, during, reads, took_s, size = [], [], 0, 0.0, 0
    costs, of_reads = LoopCosts(), Counter()
    longest = {}
    decided(mesh, "warm")
    for number in range(ROUNDS):
        plain.append(decided(mesh, f"plain-{number}"))
        be(PAGES // PEOPLE)
        costs.taken()
        began = time.monotonic()
        during.append(decided(mesh, f"open-{number}"))
        took_s += time.monotonic() - began
        for cost in costs.taken():
            if cost.kind not in OF_DECISIONS:
                of_reads[cost.kind] += cost.ms_per_s / ROUNDS
                longest[cost.kind] = max(cost.longest_ms, longest.get(cost.kind, 0.0))
        size = max(size, psutil.Process(api.process_id).memory_info().rss)
        reads += be(0)
    pages.stdin.close()
    pages.wait(60)
    added = [p99_ms(after) - p99_ms(before) for before, after in zip(plain, during, strict=True)]
    what = f"{PAGES} open pages"
    without = statistics.median(map(p99_ms, plain))
    spread = f"{min(added):.3g} to {max(added):.3g}; {without:.3g} ms without; load {os.getloadavg()[0]:.1f}"
    yield at_most(
        f"{what}: added to the p99 of decisions", statistics.median(added), 5, " ms", spread
    )
    yield at_most(f"{what}: memory of the API's process", size / 1e6, 200, " MB")
    yield note(f"{what}: screens that were read", f"{reads / took_s:,.0f} /s")
    for kind, ms_per_s in of_reads.most_common(5):
        cost = (
            f"{ms_per_s:.1f} ms/s of the supervisor's loop, at most {longest[kind]:.1f} ms at once"
        )
        yield note(f"{what}: {kind}", cost)
    yield note(f"{what}: all reads", f"{of_reads.total():.0f} ms/s of the supervisor's loop")


def p99_ms(times):
    """The 99th percentile."""
    return 1e3 * statistics.quantiles(times, n=100)[98]


def decided(mesh, name):
    """Seconds of submissions and cancellations."""
    times = []
    for number in range(LIVES):
        task_id = f"{name}-{number}"
        began = time.perf_counter()
        submit(mesh, task_id, "team-01", gpu=8, priority=0.5, owner="bench")
        submitted = time.perf_counter()
        ask(mesh, CancelTask(task_id=task_id, request_id=f"cancel {task_id}"))
        times += [submitted - began, time.perf_counter() - submitted]
        time.sleep(PAUSE_S)
    return times


if __name__ == "__main__":
    main()
