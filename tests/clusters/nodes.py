"""A cluster of three Ray nodes on this machine, for programs of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import ray
from ray.cluster_utils import Cluster

CPUS = 4
NODE = {"num_cpus": CPUS, "object_store_memory": 80_000_000}
#: A dead node is known as such after half a second instead of fifteen; a busy one is not taken for dead.
FAST = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 2,
}


@contextlib.contextmanager
def three_nodes(
    labels: Sequence[Mapping[str, str]] = ({}, {}), models: Sequence[str] = ("", "")
) -> Iterator[Cluster]:
    """A cluster of three nodes, stopped in any case. ``labels``: those of the second and the third;
    ``models``: the models of their GPUs, which need not exist. This program is connected to the head.
    """
    head = {**NODE, "include_dashboard": False, "_system_config": FAST}
    cluster = Cluster(initialize_head=True, head_node_args=head, connect=False)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        for given, model in zip(labels, models, strict=True):
            gpu = {"num_gpus": 1, "resources": {f"accelerator_type:{model}": 1}} if model else {}
            cluster.add_node(**NODE, **gpu, labels=dict(given))
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
