"""Placement groups on three nodes of four CPUs, told as one line of JSON; see test_pg_cluster.py.

A program of its own, because a process can be connected to one Ray only.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray

from schedulemesh.core import RayScheduler
from tests.clusters.nodes import three_nodes
from tests.clusters.three_nodes import Placed
from tests.integration.polling import groups_in, until

#: The labels of two of the nodes.
ZONES = ({"zone": "a"}, {"zone": "b"})
BUNDLES = {
    "STRICT_PACK": [{"cpu": 1.0}] * 3,
    "PACK": [{"cpu": 3.0}, {"cpu": 3.0}],
    "SPREAD": [{"cpu": 1.0}] * 3,
    "STRICT_SPREAD": [{"cpu": 2.0}] * 3,
}


def submit(mesh: RayScheduler, pool: str, task_id: str, **more: Any) -> Any:
    """The answer without the handle, with where the agent really is."""
    answer: Any = mesh.submit_task_with_preemption(
        task_id=task_id, pool_name=pool, priority=9.0, actor_class=Placed, **more
    )
    if answer["success"]:
        answer["really_on"] = ray.get(answer["agent"].pop("handle").where.remote())
    return answer


def standing(mesh: RayScheduler) -> dict[str, Any]:
    """The nodes of every group, according to the scheduler and to Ray."""
    pools = mesh.pg_pool_stats()["pools"].values()
    book = {g["name"]: g["node_ids"] for pool in pools for g in pool["groups"]}
    real = {
        name: [entry["bundles_to_node_id"][i] for i in sorted(entry["bundles"])]
        for name, entry in groups_in().items()
    }
    return {"book": book, "real": real, "states": [e["state"] for e in groups_in().values()]}


def strategies(mesh: RayScheduler, told: dict[str, Any]) -> None:
    """One reserved and one dynamic group of each strategy, one pool after the other."""
    for strategy, bundles in BUNDLES.items():
        spec = {"bundles": bundles, "placement_strategy": strategy}
        config = {"high_priority_pg_specs": [spec], "placement_strategy": strategy}
        made = mesh.create_pool(strategy, resources={"cpu": 100.0}, pg_pool_config=config)
        reserved = submit(mesh, strategy, f"reserved-{strategy}", bundles=bundles)
        small = [{**bundle, "cpu": 0.5} for bundle in bundles]
        dynamic = mesh.submit_task_with_preemption(
            f"dynamic-{strategy}", strategy, Placed, priority=1.0, bundles=small
        )
        dynamic.get("agent", {}).pop("handle", None)
        told[strategy] = {
            "made": made,
            "reserved": reserved,
            "dynamic": dynamic,
            "standing": standing(mesh),
        }
        mesh.resize_pool(strategy, pg_pool_config={"enable": False})
        for agent in mesh.list_agents(strategy)["agents"]:
            mesh.delete_agent(agent["name"], destroy_pg=True)
        mesh.ensure_pool(strategy, resources={"cpu": 100.0})
        until(lambda: not groups_in(), lambda: f"left: {list(groups_in())}")


def labelled(mesh: RayScheduler, told: dict[str, Any]) -> None:
    """A group that only the nodes of one zone may hold."""
    config = {
        "high_priority_pg_specs": [{"cpu": 1.0}],
        "bundle_label_selector": {"zone": "b"},
    }
    told["labelled"] = mesh.create_pool("zone", resources={"cpu": 9.0}, pg_pool_config=config)
    told["labelled_on"] = standing(mesh)["real"]
    config["bundle_label_selector"] = {"zone": "nowhere"}
    told["nowhere"] = mesh.create_pool("nowhere", resources={"cpu": 9.0}, pg_pool_config=config)
    told["zones"] = {n["NodeID"]: n["Labels"].get("zone", "") for n in ray.nodes()}


def gangs(mesh: RayScheduler, told: dict[str, Any]) -> None:
    """A gang of each strategy in a pool without groups, and one on nodes of one zone alone."""
    mesh.create_pool("plain", resources={"cpu": 100.0})
    wanted: dict[str, dict[str, Any]] = {
        strategy: {"replicas": 3, "resources": {"cpu": 1.0}, "placement": strategy}
        for strategy in BUNDLES
    }
    wanted["zone"] = {"replicas": 2, "resources": {"cpu": 2.0}, "same_label": "zone"}
    for name, given in wanted.items():
        answer: Any = mesh.submit_task_with_preemption(
            f"gang-{name}", "plain", Placed, priority=9.0, **given
        )
        assert answer["success"], answer
        handles = [member.pop("handle") for member in answer["agents"]]
        told[f"gang {name}"] = {
            "nodes": [member["node_id"] for member in answer["agents"]],
            "really_on": ray.get([handle.where.remote() for handle in handles]),
        }
        mesh.complete_task(f"gang-{name}", end_agent=True)
    until(lambda: not groups_in(), lambda: f"left: {list(groups_in())}")


def node_death(mesh: RayScheduler, cluster: Any, told: dict[str, Any]) -> None:
    """Kill a node under a reserved group with an agent, and under a bundle of another."""
    spec = {"bundles": [{"cpu": 1.0}] * 2, "placement_strategy": "STRICT_SPREAD"}
    config = {"high_priority_pg_specs": [{"cpu": 1.0}] * 3 + [spec], "placement_strategy": "PACK"}
    told["before_death"] = mesh.create_pool("pool", resources={"cpu": 20.0}, pg_pool_config=config)
    for i in range(3):
        submit(mesh, "pool", f"t{i}", resources={"cpu": 1.0})
    submit(mesh, "pool", "two", bundles=spec["bundles"])
    agents = mesh.list_agents("pool")["agents"]
    head = ray.get_runtime_context().get_node_id()
    doomed = next(
        node
        for agent in agents
        for node in reversed(agent["placement_group"]["node_ids"])
        if node != head
    )
    hit = {a["name"] for a in agents if doomed in a["placement_group"]["node_ids"]}
    told["hit"], told["doomed"] = sorted(hit), doomed
    node = next(n for n in cluster.list_all_nodes() if n.node_id == doomed)
    cluster.remove_node(node, allow_graceful=False)

    def settled() -> bool:
        stats = mesh.pg_pool_stats("pool")
        names = {a["name"] for a in mesh.list_agents("pool")["agents"]}
        stand = standing(mesh)
        return (
            stats["reserved"] == 4
            and not (names & hit)
            and stand["book"] == stand["real"]
            and all(doomed not in nodes for nodes in stand["real"].values())
            and set(stand["states"]) == {"CREATED"}
        )

    until(settled, lambda: f"not settled: {mesh.pg_pool_stats('pool')}", 40.0)
    told["survivors"] = sorted(a["name"] for a in mesh.list_agents("pool")["agents"])
    told["agents"] = sorted(a["name"] for a in agents)
    # Which groups stood on that node depends on the ids of the nodes; one like those is free now.
    alone = any(len(a["placement_group"]["node_ids"]) == 1 for a in agents if a["name"] in hit)
    again = {"resources": {"cpu": 1.0}} if alone else {"bundles": spec["bundles"]}
    told["after_death"] = submit(mesh, "pool", "again", **again)


def main() -> None:
    """All stories, one after the other."""
    told: dict[str, Any] = {}
    with three_nodes(ZONES) as cluster:
        mesh = RayScheduler("three", node_strategy="spread")
        until(lambda: len(mesh.cluster_snapshot()["nodes"]) == 3, "the nodes are not seen")
        strategies(mesh, told)
        labelled(mesh, told)
        for pool in ("zone", "nowhere"):
            mesh.ensure_pool(pool, resources={"cpu": 9.0}, pg_pool_config=None)
        until(lambda: not groups_in(), lambda: f"left: {list(groups_in())}")
        gangs(mesh, told)
        node_death(mesh, cluster, told)
        mesh.shutdown()
        told["left"] = list(groups_in())
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
