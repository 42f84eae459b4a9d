"""Measures what an agent's process really uses: CPU, memory, and the GPUs that Ray gave to it.

A daemon thread measures, so that no call waits for it. CPU and memory are those of the process and of all
processes that it has started. GPUs are measured where ``nvidia-ml-py`` is installed and NVML knows them; what
cannot be measured is left out.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from schedulemesh.protocol.agents import Usage

if TYPE_CHECKING:
    import psutil

logger = logging.getLogger(__name__)

#: Seconds from the start to the first measurement, and between two of them.
_FIRST_S, _INTERVAL_S = 2.0, 15.0
#: Minimum time between two measurements, as a multiple of what the last one took.
_COST_FACTOR = 200
#: Minimum seconds between two reports on a change.
_REPORT_S = 30.0
#: What a change has to reach to be reported: CPUs, MB, per cent; or this part of the former value.
_STEP = {"cpu": 0.2, "memory_mb": 256.0, "gpu_utilization": 5.0, "gpu_memory_mb": 256.0}
_PART = 0.25

_MB = 1024 * 1024


class UsageSampler:
    """Measures the process, and reports what has changed much; the newest values can be asked for."""

    def __init__(self, report: Callable[[Usage], object]) -> None:
        self._report = report
        self._newest: Usage | None = None
        self._reported: Usage | None = None
        self._reported_at = float("-inf")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to measure; again: nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="schedulemesh-usage", daemon=True
            )
            self._thread.start()

    def newest(self) -> Usage | None:
        """The newest values, which need not be reported then; None: there are none yet."""
        newest = self._newest
        if newest is not None:
            self._reported, self._reported_at = newest, time.monotonic()
        return newest

    def _run(self) -> None:
        time.sleep(_FIRST_S / 2)
        try:
            process = ProcessUsage()
        except ImportError:
            logger.debug("psutil is not installed; what agents use is not measured")
            return
        gpus, wait_s = GpuUsage.of_this_process(os.environ), _FIRST_S / 2
        while True:
            time.sleep(wait_s)
            began = time.monotonic()
            try:
                self._measure(process, gpus, began)
            except Exception:  # the next measurement is made all the same
                logger.debug("what this process uses was not measured or reported", exc_info=True)
            wait_s = max(_INTERVAL_S, _COST_FACTOR * (time.monotonic() - began))

    def _measure(self, process: ProcessUsage, gpus: GpuUsage, now: float) -> None:
        """Measure once, and report what differs much from what was reported before."""
        self._newest = usage = process.measured(gpus.measured())
        if now - self._reported_at >= _REPORT_S and _differs(self._reported, usage):
            self.newest()
            self._report(usage)


class ProcessUsage:
    """The CPU and memory of this process and its descendants."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._own = psutil.Process()
        #: CPU seconds by process, those of its children that have ended included, and when that was.
        self._seconds, self._at = _spent(self._processes())

    def measured(self, gpu: tuple[float, float] | None) -> Usage:
        """The mean CPU since the last measurement, and the memory now, with what was measured of GPUs."""
        processes, memory = self._processes(), 0
        seconds, now = _spent(processes)
        for process in processes:
            with suppress(self._psutil.Error):
                memory += process.memory_info().rss
        # The seconds of a child that has ended are in those of its parent, so the sum does not fall. It does
        # where a process leaves the tree, and what it used is then not known.
        spent = sum(seconds.values()) - sum(self._seconds.values())
        elapsed = now - self._at
        self._at, self._seconds = now, seconds
        return Usage(
            cpu=max(0.0, spent) / elapsed if elapsed > 0.0 else 0.0,
            memory_mb=memory / _MB,
            gpu_utilization=None if gpu is None else gpu[0],
            gpu_memory_mb=None if gpu is None else gpu[1],
        )

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._own, *self._own.children(recursive=True)]
        except self._psutil.Error:
            return [self._own]


def _spent(processes: list[psutil.Process]) -> tuple[dict[int, float], float]:
    """The CPU seconds of processes by their ids, and the moment of that. To find the processes takes long on
    a busy machine, so it does not count.
    """
    began = time.monotonic()
    seconds = {process.pid: _cpu_seconds(process) for process in processes}
    return seconds, (began + time.monotonic()) / 2


def _cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process and of its children that have ended; 0 of one that has just ended."""
    import psutil

    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return float(times.user + times.system + ended)


class GpuUsage:
    """The GPUs that this process may use, by NVML."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str]) -> GpuUsage:
        """Those that Ray made visible to it; without NVML, or where it does not know them: none."""
        names = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        if not names:
            return cls(None, [])
        try:
            import pynvml
        except ImportError:
            logger.debug("nvidia-ml-py is not installed; GPUs are not measured")
            return cls(None, [])
        try:
            pynvml.nvmlInit()
            return cls(pynvml, [_handle(pynvml, name.strip()) for name in names])
        except (pynvml.NVMLError, ValueError) as error:
            logger.debug("GPUs %s cannot be measured: %s", ",".join(names), error)
            return cls(None, [])

    def measured(self) -> tuple[float, float] | None:
        """Their mean utilisation in per cent, and the memory used on them in MB; None: not known."""
        if not self._handles:
            return None
        nvml = self._nvml
        try:
            rates = [nvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
            used = [nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
        except nvml.NVMLError as error:
            logger.debug("GPUs cannot be measured: %s", error)
            return None
        return sum(rates) / len(rates), sum(used) / _MB


def _handle(nvml: Any, name: str) -> Any:
    """A device by its index or UUID, as CUDA_VISIBLE_DEVICES names it."""
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name.encode())


def _differs(before: Usage | None, usage: Usage) -> bool:
    """Whether any value has changed much."""
    if before is None:
        return True
    for name, step in _STEP.items():
        old, new = getattr(before, name), getattr(usage, name)
        if (old is None) != (new is None):
            return True
        if old is not None and abs(new - old) >= max(step, _PART * old):
            return True
    return False
