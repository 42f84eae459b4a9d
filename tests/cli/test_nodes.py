"""Nodes are named by their host, their address, or the beginning of their id, on every surface."""

from __future__ import annotations

import json

import pytest

from schedulemesh.cli.exits import ExitCode
from schedulemesh.domain.resources import parse_resources
from schedulemesh.runtime.backend import NodeView

ROOM = parse_resources({"cpu": 8, "memory": 65_536})
ONE, TWO = "238f" + "0" * 52, "2390" + "1" * 52


@pytest.fixture
def nodes(scheduler):
    service = scheduler.connection.service
    service.backend.free = [
        NodeView(node_id=node_id, total=ROOM, free=ROOM, labels={}, host=host, address=address)
        for node_id, host, address in ((ONE, "gpu-7", "10.0.0.7"), (TWO, "gpu-8", "10.0.0.8"))
    ]
    service.do(service.running.monitor.observe())


def cordoned(run):
    return [
        row["node_id"] for row in json.loads(run("nodes", "-o", "json").stdout) if row["cordoned"]
    ]


def test_nodes_are_listed_by_host_with_the_shortest_id(nodes, run):
    table = run("nodes").stdout
    assert "gpu-7  238f" in table
    assert ONE not in table
    assert run("nodes", "238", "-o", "name").stdout == f"{ONE}\n"
    assert run("nodes", "gpu-8", "10.0.0.7", "-o", "name").stdout == f"{ONE}\n{TWO}\n"
    unknown = run("nodes", "gpu-9")
    assert (unknown.exit_code, unknown.stdout) == (ExitCode.NOT_FOUND, "")
    assert "there is no node 'gpu-9'; nodes are: gpu-7, gpu-8" in unknown.stderr


@pytest.mark.parametrize("field", ["node", "host", "address", "name", "node_id", "id"])
def test_a_filter_for_a_node_that_there_is_not_is_refused(nodes, run, field):
    done = run("nodes", "-f", f"{field}=gpu-9")
    assert (done.exit_code, done.stdout) == (ExitCode.NOT_FOUND, "")
    assert done.stderr == (
        "there is no node 'gpu-9' (did you mean 'gpu-8'?); `schedulemesh nodes` lists the 2 that there are\n"
    )


def test_nodes_are_listed_with_their_domains_and_by_them(scheduler, run):
    service = scheduler.connection.service
    domains = {ONE: {"block": "b1", "rack": "r7", "zone": "a"}, TWO: {"block": "b1", "rack": "r8"}}
    service.backend.free = [
        NodeView(node_id=node_id, total=ROOM, free=ROOM, labels=labels, host="", address="")
        for node_id, labels in domains.items()
    ]
    service.do(service.running.monitor.observe())
    assert "topology" not in run("nodes").stdout
    assert run("policy", "set", "topology_levels=[block, rack]").exit_code == 0
    assert "b1/r7" in run("nodes").stdout
    in_rack = json.loads(run("nodes", "-l", "rack=r8", "-o", "json").stdout)
    assert [row["topology"] for row in in_rack] == [{"block": "b1", "rack": "r8"}]


@pytest.mark.parametrize("name", ["238f", "gpu-7", "10.0.0.7", ONE])
def test_a_node_is_closed_and_drained_by_any_of_its_names(nodes, scheduler, run, name):
    assert run("cordon", name).exit_code == 0
    assert cordoned(run) == [ONE]
    assert run("uncordon", name).exit_code == 0
    assert cordoned(run) == []
    assert run("drain", name).exit_code == 0
    assert json.loads(run("drains", "-o", "json").stdout)[0]["node_id"] == ONE
    assert run("undrain", name).exit_code == 0
    assert scheduler.calls.cordon_node(name)["success"]
    assert cordoned(run) == [ONE]


@pytest.mark.parametrize("name", ["23", "2", "x"])
def test_a_name_of_several_nodes_or_none_changes_nothing(nodes, scheduler, run, name):
    done = run("cordon", name)
    assert done.exit_code == ExitCode.NOT_FOUND
    assert "gpu-7, gpu-8" in done.stderr
    assert scheduler.calls.drain_node(name)["reason"] == "node_not_found"
    assert cordoned(run) == []


def test_a_node_that_was_cordoned_before_its_drain_stays_so_and_that_is_said(nodes, run):
    assert run("cordon", "gpu-7").exit_code == 0
    assert run("drain", "gpu-7").exit_code == 0
    done = run("undrain", "gpu-7")
    assert done.stdout.splitlines()[1].split(maxsplit=1) == ["gpu-7", "drain ended"]
    assert "was cordoned before it was drained, and stays so" in done.stderr
    assert "`schedulemesh uncordon gpu-7` opens it" in done.stderr
    assert cordoned(run) == [ONE]
    assert "was not drained" in run("undrain", "gpu-7").stdout
