"""A client of the benchmark of requests, in a process of its own.

``python -m benchmarks.request_client ADDRESS NUMBER`` attaches, and prints a line when it is ready. Each line
that it reads is a JSON list: what to call ("submit" or "empty"), and how often. It prints a line when that
is done.
"""

from __future__ import annotations

import itertools
import json
import sys

import ray

from benchmarks.pairs import worker_class
from schedulemesh.core import RayScheduler

NAME, NAMESPACE, EMPTY = "requests", "benchmark", "empty"
#: The Ray of this benchmark has no GPU: tasks wait.
NEED = {"gpu": 1.0}


def main() -> None:
    """Call as often as is asked on the standard input."""
    address, number = sys.argv[1:]
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    scheduler = RayScheduler.attach(NAME, namespace=NAMESPACE)
    empty = ray.get_actor(EMPTY)
    numbers, worker = itertools.count(), worker_class()

    def submit() -> None:
        task_id = f"task-{number}-{next(numbers)}"
        answer = scheduler.submit_task_with_preemption(
            task_id, "pool", worker, resources=NEED, queue=True
        )
        if answer["state"] != "queued":
            raise AssertionError(answer)

    calls = {"submit": submit, "empty": lambda: ray.get(empty.nothing.remote())}
    for call in calls.values():
        call()
    print("ready", flush=True)
    for line in sys.stdin:
        what, count = json.loads(line)
        for _ in range(count):
            calls[what]()
        print("done", flush=True)


if __name__ == "__main__":
    main()
