"""Commands inside jobs and leases on other nodes than the supervisor's.

The cluster is in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.integration.drivers import output_of


@pytest.fixture(scope="module")
def told():
    """What the program told."""
    return output_of("tests.clusters.exec_on_nodes", 300)


def test_a_command_runs_on_the_node_of_its_job_or_lease(told):
    assert told["elsewhere"]
    assert (told["job"]["exit_code"], told["job"]["stdout"]) == (3, "out\n")
    assert (told["lease"]["exit_code"], told["lease"]["stdout"]) == (0, "l\n")


def test_a_lost_node_ends_the_command_and_is_said(told):
    assert told["lost"]["reason"] == "task_not_running"
    assert told["lost"]["error"].endswith(" is lost, and the command with it")
