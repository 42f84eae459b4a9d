"""Runs commands as ``ray job submit`` does, without a dashboard: with Ray's own packer and manager of
jobs. Reads ``{name: {"entrypoint", "runtime_env"}}`` as JSON, and writes ``{name: [exit code, log]}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import ray
from ray._private.runtime_env.working_dir import upload_working_dir_if_needed
from ray.dashboard.modules.job.job_manager import JobManager
from ray.runtime_env import RuntimeEnv

#: Jobs at once.
_AT_ONCE = 4


async def ran(manager, gate, given):
    """The exit code and the log of a job, once it has ended."""
    async with gate:
        with tempfile.TemporaryDirectory() as scratch:
            env = upload_working_dir_if_needed(
                dict(given["runtime_env"]), include_gitignore=True, scratch_dir=scratch
            )
        env = RuntimeEnv(**env).to_dict()
        # Ray would give the driver the address of the Ray that was started last on this machine.
        entrypoint = f"export RAY_ADDRESS={os.environ['RAY_ADDRESS']}; {given['entrypoint']}"
        job = await manager.submit_job(entrypoint=entrypoint, runtime_env=env)
        while not (info := await manager.get_job_info(job)).status.is_terminal():  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # between two looks at what has no event
        return [info.driver_exit_code, manager.get_job_logs(job) or info.message]


@contextmanager
def submitted(given):
    """The id of a submission with these arguments, while it runs."""
    address = ray.get_runtime_context().gcs_address
    with subprocess.Popen(
        [sys.executable, __file__, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "RAY_ADDRESS": address},
        text=True,
    ) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


async def submit(given):
    """Submit a command, and stay until the input ends."""
    node = ray._private.worker._global_node
    client = ray._private.worker.global_worker.gcs_client
    manager = JobManager(client, node.get_logs_dir_path())
    print(await manager.submit_job(**given), flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def main(given):
    """Run all of these."""
    node = ray._private.worker._global_node
    client = ray._private.worker.global_worker.gcs_client
    manager = JobManager(client, node.get_logs_dir_path())
    gate = asyncio.Semaphore(_AT_ONCE)
    ended = await asyncio.gather(*(ran(manager, gate, one) for one in given.values()))
    return dict(zip(given, ended, strict=True))


if __name__ == "__main__":
    # "auto" could be another Ray of this machine.
    ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
    if sys.argv[1:]:
        asyncio.run(submit(json.loads(sys.argv[1])))
    else:
        print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
