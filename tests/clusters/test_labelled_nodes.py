"""Agents that ask for a model of GPU or for labels: the scheduler places them, also by evictions.

The cluster lives in a process of its own.
"""

from __future__ import annotations

from tests.integration.drivers import output_of


def test_agents_run_on_the_nodes_that_they_ask_for_and_evict_there_alone():
    told = output_of("tests.clusters.labelled_nodes", 200)
    models = told["models"]
    for name, expected in (("low a", "A100"), ("low h", "H100"), ("top h", "H100")):
        answer = told[name]
        assert answer["success"], answer
        assert models[answer["really_on"]] == expected
        assert answer["agent"]["node_id"] == answer["really_on"]
    for name in ("dry h", "top h"):
        assert [victim["task_id"] for victim in told[name]["preempted"]] == ["low-h"]
    for name in ("none", "dry none"):
        answer = told[name]
        assert answer["reason"] == "cluster_out_of_resources"
        assert "A100, H100" in answer["error"]
        assert answer["seconds"] < 10.0


def test_a_job_a_gang_and_a_lease_take_the_first_alternative_that_is_free():
    told = output_of("tests.clusters.models_on_nodes", 300)
    models, beside, after = (
        told["models"],
        told["job beside the lease"],
        told["job after the lease"],
    )
    assert [models[node_id] for node_id in told["lease"]] == ["H100"]
    assert told["explain"] == 1
    gang = told["gang"]
    assert [models[node_id] for node_id in gang["where"]] == ["A100", "A100"]
    assert (gang["alternative"], list(gang["labels"].values())) == (2, ["A100"])
    for job, model, alternative in ((beside, "A100", "2"), (after, "H100", "1")):
        assert job["submitted"]
        assert models[job["where"]] == model
        assert (list(job["told"].values()), job["alternative"]) == ([model], alternative)


def test_pools_with_flavors_borrow_and_take_back_the_model_that_they_own():
    told = output_of("tests.clusters.flavors_on_nodes", 300)
    models, beside = told["models"], told["job beside the lease"]
    assert ([models[node_id] for node_id in told["lease"]], told["lease flavor"]) == (
        ["H100"],
        "h100",
    )
    assert (models[beside["where"]], list(beside["told"].values())) == ("A100", ["A100"])
    owner, guest = told["owner"], told["guest"]
    assert owner["preempted"] == ["lease"]
    assert [models[node_id] for node_id in owner["where"]] == ["H100", "H100"]
    assert guest["preempted"] == []
    assert [models[node_id] for node_id in guest["where"]] == ["A100", "A100"]
    assert (owner["flavor"], guest["flavor"]) == ("h100", "a100")
    assert told["used"] == {
        "owners": {"cpu": 2.0, "custom": {"gpu@h100": 1.0}},
        "guests": {"cpu": 2.0, "custom": {"gpu@a100": 1.0}},
    }
    assert told["explained"] == [["h100", "insufficient_quota"], ["a100", "insufficient_quota"]]


def test_a_gang_a_lease_and_a_job_are_in_the_rack_that_holds_them():
    told = output_of("tests.clusters.topology_on_nodes", 300)
    in_rack = {node_id for node_id, domains in told["racks"].items() if domains == {"rack": "r1"}}
    assert len(in_rack) == 2
    assert set(told["gang"]) == in_rack
    assert set(told["lease"]) == in_rack
    assert sorted(told["job"][node_id] for node_id in in_rack) == [0.0, 3.0]
    refused = told["too large"]
    assert refused["reason"] == "cluster_out_of_resources"
    assert "no rack has cpu 9 free: the best, r1, has cpu 8" in refused["error"]
