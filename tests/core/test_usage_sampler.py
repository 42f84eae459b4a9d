"""What an agent's process uses is measured, and reported when it has changed much."""

from __future__ import annotations

import itertools
import queue
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from schedulemesh.core.agent import usage_sampler
from schedulemesh.core.agent.usage_sampler import GpuUsage, ProcessUsage, UsageSampler
from schedulemesh.protocol.agents import Usage

BURN = "import time; end = time.process_time() + 60\nwhile time.process_time() < end: pass"


def cpu_seconds():
    return time.process_time()


def look():
    """The CPU seconds of this process, and the time."""
    return cpu_seconds(), time.monotonic()


def test_the_cpu_is_what_the_process_burns():
    looks = [look()]
    process = ProcessUsage()
    looks.append(look())
    while cpu_seconds() - looks[1][0] < 0.3:
        pass
    looks.append(look())
    found = process.measured(None)
    looks.append(look())
    # Its own two looks were between these, each at a moment that is not known. The system counts in ticks.
    least, most = looks[2][0] - looks[1][0], looks[3][0] - looks[0][0]
    longest, shortest = looks[3][1] - looks[0][1], looks[2][1] - looks[1][1]
    assert (least - 0.05) / longest <= found.cpu <= (most + 0.05) / shortest
    assert 10.0 < found.memory_mb < 100_000.0
    assert (found.gpu_utilization, found.gpu_memory_mb) == (None, None)


@pytest.mark.parametrize("took_s", [(0.5, 0.0), (0.0, 0.5)])
def test_how_long_processes_are_looked_for_does_not_change_the_cpu(monkeypatch, took_s):
    """A process that burns one CPU all the time, looked at before and after a second."""
    now, took = 0.0, iter(took_s)

    class Busy:
        pid = 1

        def children(self, recursive):
            nonlocal now
            now += next(took)
            return []

        def cpu_times(self):
            return SimpleNamespace(user=now, system=0.0)

        def memory_info(self):
            return SimpleNamespace(rss=0)

    monkeypatch.setattr("psutil.Process", Busy)
    monkeypatch.setattr(usage_sampler.time, "monotonic", lambda: now)
    process = ProcessUsage()
    now += 1.0
    assert process.measured(None).cpu == 1.0


def test_the_cpu_of_children_counts_while_they_run_and_when_they_have_ended():
    process = ProcessUsage()
    child = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        seen = usage_sampler._cpu_seconds
        until = time.monotonic() + 30
        own = next(one for one in process._own.children() if one.pid == child.pid)
        while seen(own) < 0.3:
            assert time.monotonic() < until
            time.sleep(0.01)  # the child burns
        running = process.measured(None)
        before = sum(process._seconds.values())
    finally:
        child.kill()
        child.wait()
    assert running.cpu > 0.0
    process.measured(None)
    after = sum(process._seconds.values())
    assert round(after - before, 6) >= 0, "the seconds of an ended child are in those of its parent"


def test_an_idle_process_uses_next_to_nothing():
    process = ProcessUsage()
    threading.Event().wait(0.5)
    assert process.measured(None).cpu < 0.3


class NvmlError(Exception):
    """As pynvml.NVMLError."""


def fake_nvml():
    """Two devices, the second of which has a UUID, too; ``broken``: it raises."""
    nvml = SimpleNamespace(NVMLError=NvmlError, broken=False)

    def check():
        if nvml.broken:
            raise NvmlError

    def by_index(index):
        if index > 1:
            raise NvmlError
        return index

    def by_uuid(uuid):
        if uuid != b"GPU-1234":
            raise NvmlError
        return 1

    def rates(handle):
        check()
        return SimpleNamespace(gpu=(80, 20)[handle])

    nvml.nvmlInit = check
    nvml.nvmlDeviceGetHandleByIndex = by_index
    nvml.nvmlDeviceGetHandleByUUID = by_uuid
    nvml.nvmlDeviceGetUtilizationRates = rates
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=(handle + 1) * 1024**3)
    return nvml


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("0", (80.0, 1024.0)),
        ("0,1", (50.0, 3072.0)),
        ("GPU-1234", (20.0, 2048.0)),
        ("", None),
        ("7", None),
        ("none", None),
    ],
)
def test_gpus_are_those_that_the_process_may_use(monkeypatch, visible, found):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert GpuUsage.of_this_process({"CUDA_VISIBLE_DEVICES": visible}).measured() == found


def test_without_nvml_gpus_have_no_values(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuUsage.of_this_process({"CUDA_VISIBLE_DEVICES": "0"}).measured() is None
    nvml = fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    known = GpuUsage.of_this_process({"CUDA_VISIBLE_DEVICES": "0"})
    nvml.broken = True
    assert known.measured() is None, "what cannot be measured is not zero"
    assert GpuUsage.of_this_process({"CUDA_VISIBLE_DEVICES": "0"}).measured() is None


def test_the_first_values_are_reported_and_then_those_that_changed_much(monkeypatch):
    monkeypatch.setattr(usage_sampler, "_FIRST_S", 0.02)
    monkeypatch.setattr(usage_sampler, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(usage_sampler, "_COST_FACTOR", 0)
    monkeypatch.setattr(usage_sampler, "_REPORT_S", 0.0)
    values = iter([1.0, 1.05, 1.1, 3.0, *[3.01] * 10_000])
    measured = queue.Queue()

    class Process:
        def measured(self, gpu):
            found = Usage(cpu=next(values), memory_mb=100.0)
            measured.put(found)
            return found

    reported = queue.Queue()
    monkeypatch.setattr(usage_sampler, "ProcessUsage", Process)
    sampler = UsageSampler(reported.put)
    assert sampler.newest() is None
    sampler.start()
    sampler.start()
    assert reported.get(timeout=30).cpu == 1.0
    assert reported.get(timeout=30).cpu == 3.0
    for _ in range(10):
        measured.get(timeout=30)
    assert reported.empty()
    assert sampler.newest().cpu == 3.01


def test_a_report_that_fails_does_not_end_the_measurements(monkeypatch):
    monkeypatch.setattr(usage_sampler, "_FIRST_S", 0.02)
    monkeypatch.setattr(usage_sampler, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(usage_sampler, "_COST_FACTOR", 0)
    monkeypatch.setattr(usage_sampler, "_REPORT_S", 0.0)
    values = itertools.count(1)

    class Process:
        def measured(self, gpu):
            return Usage(cpu=float(next(values)), memory_mb=100.0)

    reported = queue.Queue()

    def report(usage):
        reported.put(usage.cpu)
        raise RuntimeError("unexpected")

    monkeypatch.setattr(usage_sampler, "ProcessUsage", Process)
    UsageSampler(report).start()
    assert [reported.get(timeout=30) for _ in range(2)] == [1.0, 2.0]
