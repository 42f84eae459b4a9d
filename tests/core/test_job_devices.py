"""What a driver itself holds of its job's claim, and the devices and threads that it is told of."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError

from schedulemesh.core.agent import job_devices as module
from schedulemesh.core.agent.job_devices import JobDevices, driver_part, logs_of_drivers
from schedulemesh.errors import InvalidRequestError, JobFailedError
from schedulemesh.protocol.agents import JobStart
from schedulemesh.protocol.job_command import JobCommand, parse_command

NODE = "ab" * 28


def devices(claimed=(0.0, 0.0), **command):
    job = JobStart(
        task_id="t", attempt=1, scheduler="s", namespace="n", owner="n/a#1", folder="/f",
        claimed={NODE: claimed, "other": (8.0, 8.0)},
    )  # fmt: skip
    return JobDevices(job, JobCommand(entrypoint="train", **command), NODE)


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
    held, lines = devices((4.0, 0.0)), []
    held.take(lines.append)
    assert lines == []
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
        devices(claimed, **command).take(print)
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
            names = {"python-core-driver-0a_7.log"} if connected else set()
            assert logs_of_drivers(shell.pid) == names
            shell.communicate(b"\n")
    assert not logs_of_drivers(os.getpid() + 1)


def test_nothing_is_waited_for_where_nothing_is_held_by_default():
    ended = threading.Event()
    devices().follow(os.getpid(), ended, print)
    devices((1.0, 1.0), driver_gpus=1.0).follow(os.getpid(), ended, print)


class Ray:
    """Gives actors the first GPUs of a node with two that nobody has."""

    def __init__(self):
        #: By actor: the GPU that it has; None: it waits for one.
        self.holders = {}
        self.others = set()

    def remote(self, _class):
        return self

    def options(self, **options):
        return SimpleNamespace(remote=lambda: self.holder(options["name"]))

    def holder(self, name):
        holder = SimpleNamespace(name=name)
        holder.ids = SimpleNamespace(remote=lambda: holder)
        self.holders[id(holder)] = None
        return holder

    def get(self, holder, timeout):
        taken = {*self.others, *self.holders.values()}
        if self.holders[id(holder)] is None:
            self.holders[id(holder)] = min({"0", "1"} - taken, default=None)
        if self.holders[id(holder)] is None:
            raise GetTimeoutError(f"{timeout} s")
        return self.holders[id(holder)]

    def kill(self, holder, *, no_restart):
        assert no_restart
        del self.holders[id(holder)]


@pytest.fixture
def on_ray(monkeypatch):
    """A job with one of two GPUs, whose driver connects to Ray and disconnects again."""
    fake = Ray()
    monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    monkeypatch.setattr(module, "_CONNECTED_S", 0.0)
    logs = iter([set(), {"first"}, {"first"}, {"first"}])
    monkeypatch.setattr(module, "logs_of_drivers", lambda _session: next(logs))
    # What Ray's table says of a connection that begins, lasts, cannot be asked about, has ended.
    looks = iter([False, True, None, False, False, False])

    def connected(_devices):
        look = next(looks)
        if look:
            assert fake.holders == {}, "the driver's actors cannot have what is held"
        return look

    monkeypatch.setattr(JobDevices, "_is_connected", connected)
    return fake


def after_a_connection(fake, meanwhile):
    """What the driver's log says after its connection, during which others get GPUs."""
    held, ended, lines = devices((1.0, 1.0)), threading.Event(), []
    held.take(lambda line: "the driver sees GPU" in line or pytest.fail(line))
    held.release, release = (lambda: (release(), meanwhile())), held.release

    def say(line):
        lines.append(line)
        ended.set()

    held.follow(os.getpid(), ended, say)
    return lines, [gpu for gpu in fake.holders.values() if gpu is not None]


def test_a_driver_has_its_gpu_again_when_its_connection_to_ray_has_ended(on_ray):
    lines, held = after_a_connection(on_ray, lambda: None)
    assert held == ["0"]
    assert len(lines) == 1
    assert "GPU 0 of the claim is held for it again" in lines[0]


def test_a_driver_gets_the_gpu_that_it_had_though_ray_would_give_another(on_ray):
    on_ray.others = {"0"}
    lines, held = after_a_connection(on_ray, on_ray.others.clear)
    assert held == ["1"]
    assert "GPU 1 of the claim is held for it again" in lines[0]


def test_a_driver_is_told_where_others_have_its_gpu(on_ray):
    lines, held = after_a_connection(on_ray, lambda: on_ray.others.add("0"))
    assert held == ["1"]
    assert "others have got GPU 0 meanwhile" in lines[0]
    assert "set CUDA_VISIBLE_DEVICES=1 before it uses GPUs again" in lines[0]


def test_a_driver_is_told_where_ray_gives_it_nothing_again(on_ray):
    lines, held = after_a_connection(on_ray, lambda: on_ray.others.update("01"))
    assert held == []
    assert "Ray has not given it GPU 0 again within 60 s" in lines[0]


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


@pytest.mark.parametrize("command", [{}, {"driver_gpus": 1.0}])
def test_a_driver_waits_for_its_gpus_as_long_as_a_start_may_take(on_ray, command):
    on_ray.others = {"0", "1"}
    held, lines = devices((1.0, 1.0), **command), []

    def say(line):
        lines.append(line)
        on_ray.others.clear()

    held.take(say)
    assert "within 15 s; it is started when it has them, within 60 s" in lines[0]
    assert "GPU 0" in lines[1]


def test_a_driver_does_not_run_without_its_gpus(on_ray):
    on_ray.others, lines = {"0", "1"}, []
    with pytest.raises(
        JobFailedError, match="1 GPUs and 1 CPUs of its claim within 60 s; other work in Ray"
    ):
        devices((1.0, 1.0)).take(lines.append)
    assert len(lines) == 1
    assert on_ray.holders == {}
