"""What a driver itself holds of its job's claim, and the devices and threads that it is told of."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from schedulemesh.core.agent.job_devices import JobDevices, driver_part, has_log_of_driver
from schedulemesh.errors import InvalidRequestError, JobFailedError
from schedulemesh.protocol.agents import JobStart
from schedulemesh.protocol.job_command import JobCommand, parse_command


def devices(claimed=(0.0, 0.0), **command):
    job = JobStart(
        task_id="t", attempt=1, scheduler="s", namespace="n", owner="n/a#1", folder="/f",
        claimed={"node": claimed, "other": (8.0, 8.0)},
    )  # fmt: skip
    return JobDevices(job, JobCommand(entrypoint="train", **command), "node")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ({}, (4.0, 2.0, False)),
        ({"driver_gpus": 1.0}, (0.0, 1.0, True)),
        ({"driver_cpus": 1.0}, (1.0, 0.0, True)),
        ({"driver_cpus": 0.0, "driver_gpus": 0.0}, (0.0, 0.0, True)),
    ],
)
def test_a_driver_takes_what_was_asked_for_or_the_gpus_of_its_claim(command, part):
    found = driver_part(JobCommand(entrypoint="train", **command), 4.0, 2.0)
    assert (found.cpus, found.gpus, found.asked_for) == part


def test_a_job_without_gpus_holds_nothing_and_sees_none():
    held = devices((4.0, 0.0))
    assert held.take() == ""
    assert held.environment({}, ()) == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("claimed", "command"),
    [
        ((1.0, 1.0), {"driver_gpus": 8.0}),
        ((4.0, 1.0), {"driver_gpus": 2.0, "driver_cpus": 1.0}),
        ((2.0, 0.0), {"driver_cpus": 2.5}),
        ((1.0, 0.5), {"driver_gpus": 0.5002}),
    ],
)
def test_a_part_beyond_the_claim_on_the_drivers_node_is_not_taken(claimed, command):
    """The claim on the other node is no part of it; there is no Ray here that could be asked."""
    asked = f"{command.get('driver_gpus', 0):g} GPUs and {command.get('driver_cpus', 0):g} CPUs"
    with pytest.raises(JobFailedError, match=f"ask for {asked}, .* {claimed[1]:g} GPUs") as failed:
        devices(claimed, **command).take()
    assert (failed.value.task_id, failed.value.exit_code) == ("t", 1)


def test_a_part_of_a_claim_that_was_rounded_is_within_it():
    for part in (1 / 3, 0.3, 0.33335):
        devices((round(part, 4), 0.0), driver_cpus=part)._check_part()


@pytest.mark.parametrize(
    ("claimed", "command", "threads"),
    [((0.0, 1.0), {}, "1"), ((0.5, 0.0), {}, "1"), ((8.0, 0.0), {"driver_cpus": 2.0}, "2")],
)
def test_numerical_libraries_have_as_many_threads_as_ray_gives(claimed, command, threads):
    assert devices(claimed, **command).environment({}, ())["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(
    ("base", "chosen", "left_alone"),
    [
        ({"OMP_NUM_THREADS": "8"}, (), "OMP_NUM_THREADS"),
        ({}, ("CUDA_VISIBLE_DEVICES",), "CUDA_VISIBLE_DEVICES"),
        ({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}, (), "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_the_user_or_the_node_says_is_left_alone(base, chosen, left_alone):
    assert left_alone not in devices().environment(base, chosen)


def test_a_process_that_is_connected_to_ray_is_known_by_its_log(tmp_path):
    """Real processes; the name of the log is Ray's."""
    program = (
        "import sys; f = open(sys.argv[1], 'w') if sys.argv[1:] else 0; print(flush=True); input()"
    )
    for arguments, connected in (([], False), ([tmp_path / "python-core-driver-0a_7.log"], True)):
        with subprocess.Popen(
            ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as shell:
            shell.stdout.readline()
            assert has_log_of_driver(shell.pid) is connected
            shell.communicate(b"\n")
    assert not has_log_of_driver(os.getpid() + 1)


def test_nothing_is_waited_for_where_nothing_is_held_by_default():
    ended = threading.Event()
    devices().release_when_connected(os.getpid(), ended)
    devices((1.0, 1.0), driver_gpus=1.0).release_when_connected(os.getpid(), ended)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"driver_gpus": 2}, "ask for gpu 1 more than the job claims, which is cpu 4, gpu 1"),
        ({"driver_cpus": -1}, "driver_cpus"),
        ({"driver_gpus": "one"}, "driver_gpus must be a finite number"),
        ({"driver_gpus": 1.5}, "whole number of devices"),
        ({"resources": None, "bundles": [{"cpu": 2}] * 2, "driver_cpus": 5}, "cpu 1 more than"),
    ],
)
def test_a_part_that_is_no_part_of_the_claim_is_refused(given, said):
    claim = {"entrypoint": "train", "resources": {"cpu": 4, "gpu": 1}}
    with pytest.raises(InvalidRequestError, match=said):
        parse_command({**claim, **given}, None)
    command, _ = parse_command({**claim, "driver_gpus": 1, "driver_cpus": 2}, None)
    assert (command.driver_gpus, command.driver_cpus) == (1.0, 2.0)
