"""Every public call with right, clumsy and hostile values, on a real Ray.

A call answers a dict or raises an error of ScheduleMesh, and nothing else; meanwhile another caller is never
refused; afterwards the supervisor, which never restarted, is killed and knows all from its journal.

``python -m tests.integration.request_fuzz [calls [seed]]`` starts a Ray of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import ray

from schedulemesh.api.call import Call
from schedulemesh.config.policy import VICTIM_ORDERS
from schedulemesh.config.settings import JournalSettings
from schedulemesh.core import RayScheduler
from schedulemesh.domain.task import FIELDS
from schedulemesh.domain.task_fields import Takers
from schedulemesh.errors import ScheduleMeshError, SchedulerNotFoundError
from tests.api.written_parts import value_of
from tests.calls_of import without_arguments
from tests.integration.hostile_values import HOSTILE, Values

Kind = Callable[[random.Random], Any]


class Agent:
    """As little as an agent can be."""

    def __init__(self, name, labels, *args, **kwargs):
        pass


class NoLabels:
    def __init__(self, name):
        pass


def one_of(*values: Any) -> Kind:
    return lambda chance: chance.choice(values)


def given_or_not(kind: Kind) -> Kind:
    return lambda chance: kind(chance) if chance.random() < 0.5 else None


def keep_state(state):
    return {"task_id": state.task_id}


def take_state(saved):
    return None


def number(chance):
    return chance.choice((0.0, 1.0, 5.0, 9.0, chance.uniform(-1e9, 1e9)))


def seconds(chance):
    return chance.choice((0.0, 1.0, 3600.0, chance.uniform(0, 1e10)))


name: Kind = one_of("a", "b", "c", "task-1", "task-2", "任务")
pool: Kind = one_of("p", "q", "groups", "unknown")
labels: Kind = one_of(None, {}, {"tier": "gold"}, {"tier": "batch", "team": "x"})
resources: Kind = one_of(None, {"cpu": 64}, {"cpu": 1}, {"gpu": 0.5}, {"memory": 10, "custom": {}})
count: Kind = one_of(0, 1, 3, 1_000_000)
flag: Kind = one_of(True, False)
strategy: Kind = one_of("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")
groups: Kind = one_of(None, None, {"enable": False}, {"enable": True, "max_dynamic_pgs": 2})
selector: Kind = one_of({"tier": "gold"}, {"tier": ["a", "b"]}, {"tier": {"exists": True}}, {})
options: Kind = one_of(None, {"max_concurrency": 2}, {"num_cpus": 64}, {"runtime_env": {}})
actor_class: Kind = one_of(Agent, NoLabels)
saved: Kind = one_of({"task_id": "a"}, {"task_id": "b", "source": "save_state", "state": 3})
rules: Kind = one_of({}, {"tier": {"gold": ["batch"]}}, {"t": {"a": ["b"], "b": ["a"]}})

node_labels: Kind = one_of(None, None, {}, {"zone": "!a"}, {"zone": "in(a, b)"}, {"zone": "in("})
fallbacks: Kind = one_of(
    None,
    None,
    [],
    [{}],
    [{"label_selector": {"zone": "a"}, "resources": {"cpu": 1}}],
    [{"bundles": [{"cpu": 1}]}, {"replicas": 2}],
    [{"groups": [[{"cpu": 1}]]}],
    [{"label_selector": {"zone": "b"}}] * 11,
)

TASK: dict[str, Kind] = {
    "resources": resources,
    "priority": number,
    "labels": labels,
    "actor_args": one_of(None, [], [1]),
    "actor_kwargs": one_of(None, {}, {"x": 1}),
    "agent_name": given_or_not(name),
    "estimated_duration": given_or_not(seconds),
    "owner": given_or_not(name),
    "on_preempted": one_of(None, "requeue", "drop", "keep"),
    "max_preemptions": one_of(None, 0, 3, -1),
    "max_retries": one_of(0, 2, -1),
    "run": one_of(None, None, "work", "_private", "no_such_method"),
    "replicas": one_of(None, None, 2, 0),
    "same_label": one_of(None, None, "rack"),
    "label_selector": node_labels,
    "fallback_strategy": fallbacks,
    "topology": one_of(
        None, None, "rack", "preferred:rack,slice:2:rack", "a:b", {"required": "rack"}, {"slice": 2}
    ),
    "queue": flag,
    "payload": one_of(None, {"a": 1}),
    "ray_options": options,
    "bundles": one_of(None, None, [{"cpu": 32}, {"cpu": 32}]),
    "driver_bundle": one_of(True, True, False, 1),
}
TASK |= {
    name: one_of(None, value_of(name))
    for name, field in FIELDS.items()
    if field.takers is not Takers.NONE and name not in TASK
}
POOL: dict[str, Kind] = {
    "name": pool,
    "labels": labels,
    "resources": one_of({"cpu": 4}, {"cpu": 100, "gpu": 8}, {}),
    "target_agents": count,
    "placement_strategy": strategy,
    "pg_pool_config": groups,
}
LENDING: dict[str, Kind] = {
    "cohort": one_of(None, "c", "d"),
    "lending_limit": one_of(None, 0, {}, {"cpu": 2}, {"gpu": 0, "custom": {"x": 1}}),
    "borrowing_limit": one_of(None, 0, {"cpu": 2}),
    "weight": one_of(1.0, 0.5, 2),
}
BUDGETS: dict[str, Kind] = {
    "budget": one_of(
        None,
        {"gpu_hours": 0.001, "period": "day", "then": "hold"},
        {"gpu_hours": 1e6, "then": "lower_priority", "priority": "low", "utc_offset": "+08:00"},
        {"gpu_hours": 0},
        {"period": "year"},
        5,
    ),
    "owner_budgets": one_of(
        None, {}, {"default": {"gpu_hours": 1}}, {"a": {"gpu_hours": None}}, []
    ),
    "flavors": one_of(
        None,
        [],
        [{"name": "x", "label_selector": {"zone": "a"}, "kinds": ["cpu"]}],
        [{"name": "x@y", "label_selector": {"zone": "a"}}],
        [{"name": "x"}],
        [5],
        {"x": {}},
    ),
}
#: Per public call its arguments.
CALLS: dict[str, dict[str, Kind]] = {
    "create_pool": POOL,
    "ensure_pool": {**POOL, **LENDING, **BUDGETS},
    "resize_pool": {
        **{k: POOL[k] for k in ("name", "resources", "target_agents", "pg_pool_config")},
        **BUDGETS,
    },
    "delete_pool": {
        "name": one_of("no-such-pool", "", 1),
        "drain": flag,
        "deadline": given_or_not(number),
    },
    "rename_pool": {"name": pool, "new_name": pool},
    "create_cohort": {
        "name": one_of("c", "d"),
        "parent": one_of(None, "c", "no-such-cohort"),
        "weight": one_of(1.0, 2),
    },
    "delete_cohort": {"name": one_of("c", "no-such-cohort", "")},
    "rename_cohort": {"name": one_of("c", "d"), "new_name": one_of("c", "d", 1)},
    "ensure_cohort": {
        "name": one_of("c", "d"),
        "parent": one_of(None, "c", "d", "no-such-cohort"),
        "weight": one_of(1.0, 2),
    },
    "pg_pool_stats": {"pool": given_or_not(pool)},
    "create_agent": {
        "name": name,
        "pool": pool,
        "actor_class": actor_class,
        "resources": one_of({"cpu": 64}),
        "ray_options": options,
        "labels": labels,
    },
    "submit_task_with_preemption": {
        "task_id": name,
        "pool_name": pool,
        "actor_class": actor_class,
        "dry_run": one_of(True),
        "request_id": given_or_not(name),
        **TASK,
    },
    "submit_with_pg_preemption": {
        "task_id": name,
        "pool_name": pool,
        "actor_class": actor_class,
        "fallback": flag,
        **TASK,
        "dry_run": one_of(True),
        "pool_selector": one_of(None),
    },
    "submit_gang": {
        "task_id": name,
        "pool_name": pool,
        "members": one_of([], [{}], [{"resources": {"cpu": 1}}, {"resources": {"cpu": 2}}], "ab"),
        "dry_run": one_of(True),
        "labels": labels,
        "priority": number,
    },
    "submit_job": {
        "task_id": name,
        "entrypoint": one_of("true", ["true"], "", [], ["true", 1]),
        "pool_name": pool,
        "resources": resources,
        "priority": number,
        "env": one_of(None, {}, {"A": "b"}, {"A": 1}),
        "working_dir": one_of(None, "/no-such-folder"),
        "bundles": one_of(None, [], [{"cpu": 1}], [{"cpu": 1}] * 2, "ab", [{}]),
        "strategy": one_of(None, "", "PACK", "SPREAD", "pack", 1),
        "over_claim": one_of(None, "", "warn", "end", True),
        "grace_s": one_of(None, 0.0, -1.0),
        "dry_run": one_of(True),
    },
    "adopt_job": {
        "ray_job_id": one_of("ff000000", "", 1),
        "pool_name": pool,
        "resources": given_or_not(resources),
        "priority": number,
        "grace_s": one_of(None, 0.0, -1.0),
        "over_claim": one_of(None, "end", "no"),
    },
    # In no pool, so that nothing starts.
    "submit_many": {
        "specs": one_of(
            [], "specs", [{}], [{"task_id": "a"}], [{"task_id": "a", "pool_name": "no-such-pool"}]
        )
    },
    "register_running_task": {
        "task_id": name,
        "agent_name": name,
        "pool_name": pool,
        "priority": number,
        "labels": labels,
        "estimated_duration": given_or_not(seconds),
        "owner": given_or_not(name),
        "on_preempted": one_of(None, "requeue", "drop", "keep"),
        "payload": one_of(None, {"a": 1}),
    },
    "complete_task": {"task_id": name, "end_agent": flag},
    "cancel_task": {"task_id": name},
    "exec_in_task": {
        "task_id": name,
        "command": one_of(["true"], "true", [], [""], [1]),
        "timeout": one_of(None, 1.0, -1.0),
        "rank": one_of(0, 1, -1, 2**60, "0", None),
    },
    "array": {
        "task_id": name,
        "state": one_of(None, "queued", "completed", "asleep"),
        "limit": count,
        "after": count,
    },
    "cancel_tasks": {"task_ids": one_of([], "no-such-task", ["no-such-task"], [1])},
    "hold_task": {"task_id": name},
    "release_task": {"task_id": name},
    "set_time_limit": {"task_id": name, "max_run_s": number},
    "set_priority": {"task_id": name, "priority": number},
    "move_to_front": {"task_id": name},
    "list_queue": {"pool": given_or_not(pool), "limit": count},
    "configure_queue": {
        "order": one_of(None, "priority", "fifo", "random"),
        "ageing_per_hour": one_of(None, 0.0, 1.0, -1.0),
        "las_threshold_gpu_hours": one_of(None, 8.0),
        "shortest_preempts": one_of(None, True),
        "backfill_limit_s": one_of(None, 3600.0),
        "promote_after_s": one_of(None, 0.0, 600.0),
        "waiting_weight": one_of(None, 0.5, -1.0),
        "waiting_weight_s": one_of(None, 60.0),
        "estimates": one_of(None, True, "perhaps"),
        "on_impossible": one_of(None, "skip", "drop"),
        "impossible_after_s": one_of(None, 60.0, -1.0),
    },
    "explain": {"task_id": name},
    "result": {"task_id": name},
    # Of tasks that do not exist: a wait for one that runs would last as long as it is given.
    "wait": {
        "task_ids": one_of([], "no-such-task", ["no-such-task", "no-other"]),
        "timeout": one_of(0.0, 1.0),
        "until": one_of("ended", "running", "done"),
        "progress": one_of(False),
    },
    "evaluate_preemption": {
        "incoming_task_priority": number,
        "incoming_task_pool": pool,
        "incoming_task_labels": labels,
        "resources": resources,
        "limit": count,
    },
    "execute_preemption": {"task_id": name, "agent_name": name},
    "preempt_task": {
        "task_id": given_or_not(name),
        "agent_name": given_or_not(name),
        "for_pool": given_or_not(pool),
    },
    "update_preemption_policy": {
        "preemption_aggressiveness": one_of(None, "high", "LOW"),
        "same_pool_priority_threshold": one_of(None, 1.0, 3.0),
        "remaining_time_weight": one_of(None, 0.1, 1e6),
        "min_preempt_score": one_of(None, 0.5, -1e17),
        "protected_pools": one_of(None, [], ["q"], {"q", "p"}),
        "label_preemption_rules": rules,
        "enable_label_preemption": one_of(None, True, False),
        "victim_order": one_of(None, *VICTIM_ORDERS, "random"),
        "priority_classes": one_of(None, {}, {"urgent": 8}, {"high": 8}, {"1": 8}, {"x": "y"}, [1]),
        "topology_levels": one_of(
            None, [], ["rack"], ["block", "rack"], ["a:b"], ["r", "r"], "rack"
        ),
        "save_timeout": one_of(None, 1.0, 30.0),
    },
    "list_preemptions": {
        "task_id": given_or_not(name),
        "pool_name": given_or_not(pool),
        "owner": given_or_not(name),
        "limit": count,
    },
    "save_task_state": {"task_id": name},
    "get_saved_state": {"task_id": name},
    "restore_task": {"saved_state": saved},
    # Pools of their own, because a handler is run by a worker of its own, which takes a second.
    "register_state_handlers": {
        "pool_name": one_of("h", "i"),
        "preserver": one_of(None, keep_state),
        "restorer": one_of(None, take_state),
    },
    "end_orphans": {"names": one_of(None, [], ["no-such-orphan"])},
    "ensure_agent_health": {"timeout": one_of(1.0, 120.0)},
    "list_agents": {"pool_name": given_or_not(pool)},
    "delete_agent": {"name": name, "force": flag, "destroy_pg": given_or_not(flag)},
    "list": {"address": one_of(None, "auto", "127.0.0.1:1")},
    "test_alerts": {"receiver": given_or_not(name)},
    "drain_node": {"node_id": one_of("no-such-node"), "deadline": one_of(None, 1.0)},
    "undrain_node": {"node_id": one_of("no-such-node")},
    "drain_pool": {"pool_name": one_of("no-such-pool"), "deadline": one_of(None, 1.0)},
    "undrain_pool": {"pool_name": one_of("no-such-pool")},
    "create_window": {
        "name": name,
        "start": one_of("2030-01-01T00:00Z", "2030-01-01", 5.0, None),
        "duration": one_of(60.0, "1h", 0.0),
        "nodes": given_or_not(name),
        "node_labels": given_or_not(labels),
        "all_nodes": flag,
        "resources": one_of(
            None, {"gpu": 1}, {"cpu": 2.5}, {"gpu": 1, "cpu": 1}, {}, {"gpus": -1}, 8
        ),
        "repeat": one_of(None, "daily", "weekly", "yearly"),
        "notice": one_of(0.0, "1h", -1.0),
        "comment": given_or_not(name),
        "pools": given_or_not(pool),
        "owners": given_or_not(name),
        "labels": given_or_not(labels),
        "replace": flag,
    },
    "delete_window": {"name": name},
    "history": {
        "task_id": given_or_not(name),
        "pool": given_or_not(pool),
        "since": one_of(None, 0.0, "1h", "2026-01-01"),
        "limit": one_of(1, 100),
        "with_events": flag,
        "at_once": flag,
    },
    "usage": {
        "by": one_of("pool", "owner", "label"),
        "since": one_of("24h", 0.0),
        "at_once": flag,
    },
    "events": {"after": one_of(None, 0, 5), "limit": one_of(1, 1000), "wait_s": one_of(0.0, 0.1)},
    "audit": {"call": one_of(None, "ensure_pool"), "limit": one_of(1, 100)},
    "export_history": {"path": one_of("/dev/null/no-such-folder/jobs.txt")},
    "cordon_node": {"node_id": one_of("no-such-node"), "cordoned": flag},
    "get_metrics": {"by": one_of("agent", "pool", "label"), "pool": given_or_not(pool)},
}
#: Not asked here: they end the scheduler, or this object's use of it, or answer with no dict.
ENDING = {"detach", "shutdown", "supervisor_handle", "future", "dashboard", "metrics_text"}
ENDING |= {"job_logs", "task_logs", "lease", "get_lease"}
CALLS |= {name: {} for name in without_arguments(RayScheduler) if name not in {*CALLS, *ENDING}}
#: Tags of all requests.
TAGS = [str(kind.__struct_config__.tag) for kind in Call.__subclasses__()]


class Witness(threading.Thread):
    """Another caller, whose every call must succeed."""

    def __init__(self, scheduler: RayScheduler) -> None:
        super().__init__(daemon=True)
        self._scheduler = scheduler
        self.over = threading.Event()
        self.calls = 0
        self.slowest_s = 0.0
        self.trouble: list[str] = []

    def run(self) -> None:
        while not self.over.wait(0.005):
            began = time.monotonic()
            try:
                self._once()
            except Exception:  # noqa: BLE001  # told at the end
                self.trouble.append(traceback.format_exc())
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _once(self) -> None:
        task = f"witness-{self.calls}"
        for answer in (
            self._scheduler.register_running_task(task, "elsewhere", "nowhere", priority=1e9),
            self._scheduler.list_pools(),
            self._scheduler.complete_task(task),
        ):
            self.calls += 1
            if not answer["success"]:
                self.trouble.append(str(answer))


class Fuzz:
    """One run; ``without`` names calls that are not made."""

    def __init__(self, scheduler: RayScheduler, seed: int, without: Collection[str] = ()) -> None:
        self._scheduler = scheduler
        self._calls = [name for name in CALLS if name not in without]
        self._chance = random.Random(seed)
        self._values = Values(self._chance)
        self.counts: Counter[str] = Counter()

    def call(self) -> None:
        """One public call."""
        name = self._chance.choice(self._calls)
        kinds = CALLS[name]
        given = {key: self._values.of(kind) for key, kind in kinds.items()}
        given = {k: v for k, v in given.items() if self._chance.random() < 0.9}
        if self._chance.random() < 0.01:
            given["no_such_argument"] = 1
        if "dry_run" in kinds:
            # Whatever is not refused is a dry run; real starts are other tests' matter.
            given["dry_run"] = True if given.get("dry_run", False) is False else given["dry_run"]
        try:
            answer = getattr(self._scheduler, name)(**given)
        except ScheduleMeshError as error:
            self.counts[f"{name}: {type(error).__name__}"] += 1
            str(error).encode()
            return
        json.dumps(answer["success"])
        if answer.get("reason") == "internal_error":
            raise AssertionError(f"{name}({given.keys()}): {answer['error']}")
        self.counts[f"{name}: {answer.get('reason') if not answer['success'] else 'success'}"] += 1

    def construct(self) -> None:
        """A scheduler that cannot be made, or found."""
        choose = self._chance.choice
        try:
            if self._chance.random() < 0.5:
                RayScheduler.attach(choose(HOSTILE), namespace=choose(HOSTILE))
            else:
                RayScheduler(
                    "",
                    namespace=choose(HOSTILE),
                    state_path=choose(HOSTILE),
                    node_strategy=choose(("bin_pack", *HOSTILE)),
                    strategies=choose(((), *HOSTILE)),
                    health_interval_s=choose(HOSTILE),
                )
        except (ScheduleMeshError, SchedulerNotFoundError) as error:
            self.counts[f"RayScheduler: {type(error).__name__}"] += 1
        try:
            JournalSettings(**{choose(JournalSettings.__struct_fields__): choose(HOSTILE)})
        except ScheduleMeshError as error:
            self.counts[f"JournalSettings: {type(error).__name__}"] += 1

    def raw(self) -> None:
        """Bytes that no client makes."""
        tree = {"request": self._chance.choice(TAGS), **self._tree(3)}
        try:
            data = msgspec.msgpack.encode(tree)
        except (TypeError, OverflowError, UnicodeEncodeError, RecursionError):
            data = self._chance.randbytes(self._chance.randrange(100))
        found = ray.get(self._scheduler.supervisor_handle().ask.remote(data))
        answer = msgspec.msgpack.decode(found[0] if isinstance(found, tuple) else found)
        refused = answer.get("refused") or answer.get("outcome") or {}
        if refused.get("reason") == "internal_error":
            raise AssertionError(f"{tree}: {refused}")
        self.counts[f"bytes: {answer['answer']}"] += 1

    def _tree(self, levels: int) -> dict[str, Any]:
        fields = ("task_id", "agent_name", "pool_name", "name", "request_id", "priority", "task")
        fields = (*fields, "agent", "spec", "changes", "client", "limit", "timeout_s", "labels")
        plain = (
            "a",
            "p",
            "",
            "a\nb",
            3,
            -1,
            1e300,
            None,
            True,
            [],
            {},
            b"x",
            float("nan"),
            2**64 - 1,
        )
        chosen = self._chance.sample(fields, self._chance.randrange(5))
        return {
            field: (
                self._tree(levels - 1)
                if levels and self._chance.random() < 0.3
                else self._chance.choice(plain)
            )
            for field in chosen
        }


def books(scheduler: RayScheduler) -> dict[str, Any]:
    """What must outlive the supervisor, but for what the clock changes."""
    tasks = scheduler.list_tasks()["tasks"]
    return {
        "pools": scheduler.list_pools()["pools"],
        "tasks": [{k: v for k, v in task.items() if k != "remaining_time"} for task in tasks],
        "policy": scheduler.get_preemption_policy(),
        "stats": scheduler.get_preemption_stats(),
        "states": scheduler.list_saved_states(),
    }


def run(scheduler: RayScheduler, other: RayScheduler, calls: int, seed: int) -> Fuzz:
    """So many calls; whatever breaks a promise is an AssertionError that names the seed."""
    untold = set(public_calls()) - set(CALLS) - ENDING
    assert not untold, f"calls that this fuzz does not know: {untold}"
    pid, fuzz, witness = scheduler.about()["pid"], Fuzz(scheduler, seed), Witness(other)
    scheduler.update_preemption_policy(cancel_timeout=1.0)
    witness.start()
    try:
        for number in range(calls):
            try:
                (
                    fuzz.raw
                    if number % 8 == 7
                    else fuzz.construct
                    if number % 50 == 1
                    else fuzz.call
                )()
            except Exception as error:
                raise AssertionError(f"seed {seed}, call {number}") from error
    finally:
        witness.over.set()
        witness.join()
    assert not witness.trouble, f"seed {seed}: another caller: {witness.trouble[:3]}"
    assert witness.calls, "the other caller was never served"
    assert scheduler.about()["pid"] == pid, f"seed {seed}: the supervisor restarted"
    before = books(scheduler)
    os.kill(pid, signal.SIGKILL)
    after = books(scheduler)
    assert scheduler.about()["pid"] != pid
    for part, known in before.items():
        assert after[part] == known, f"seed {seed}: {part} differ after a reload"
    fuzz.counts["the other caller's calls"] = witness.calls
    fuzz.counts["its slowest three, ms"] = round(witness.slowest_s * 1000)
    return fuzz


def public_calls() -> list[str]:
    """The names of all calls of a scheduler."""
    return [
        name
        for name in dir(RayScheduler)
        if not name.startswith("_") and name not in ("attach", "name")
    ]


def main() -> None:
    """The long form."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    print(f"seed {seed}, {calls} calls", flush=True)
    ray.init(address="local", num_cpus=8, object_store_memory=80_000_000, include_dashboard=False)
    scheduler = RayScheduler("fuzz", namespace="fuzz")
    began = time.monotonic()
    fuzz = run(scheduler, RayScheduler("fuzz", namespace="fuzz"), calls, seed)
    for what, many in sorted(fuzz.counts.items()):
        print(f"{many:8,}  {what}")
    print(f"{calls} calls in {time.monotonic() - began:.0f} s; the journal was loaded again")
    scheduler.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
