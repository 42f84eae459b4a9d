"""What jobs start with Ray's job API, and what their workers leave, told as one line of JSON; see
test_job_api.py.

A program of its own, because Ray has a dashboard here, which takes seconds to start.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from schedulemesh.core import RayScheduler
from tests.integration.polling import actors_in, process_exists, until

#: A driver that submits two commands with Ray's job API, of which one uses Ray; starts a worker that leaves a
#: daemon; and has two detached actors, of which one is a cache.
DRIVER = """
import os
import sys
import time
from pathlib import Path

import own_module
import ray
from ray.job_submission import JobSubmissionClient

folder = Path(sys.argv[1])
client = JobSubmissionClient()


# The agent of a Ray that has just begun takes no submissions yet.
def submitted(entrypoint):
    until = time.time() + 60
    while True:
        try:
            return client.submit_job(entrypoint=entrypoint)
        except RuntimeError as error:
            if "No available agent" not in str(error) or time.time() > until:
                raise
            time.sleep(0.5)  # between two attempts: that the agent is there has no event


submitted(f"echo $$ > {folder}/plain && sleep 600")
script = folder / "submitted.py"
script.write_text(f'''
import os, time, ray
ray.init()
@ray.remote(num_cpus=1)
class Detached:
    def pid(self):
        return os.getpid()
worker = Detached.options(name="submitted", namespace="outside", lifetime="detached").remote()
pid = ray.get(worker.pid.remote())
open("{folder}/uses_ray", "w").write(str(os.getpid()))
time.sleep(600)  # there to be ended
''')
submitted(f"{sys.executable} {script}")
ray.init()


@ray.remote(num_cpus=0)
class Cache:
    def pid(self):
        return os.getpid()


@ray.remote(num_cpus=0)
def leaves_a_daemon():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.execvp("sleep", ["sleep", "600"])  # there to be ended
        os._exit(0)
    os.wait()
    return int(os.read(reader, 20))


how = {"namespace": "outside", "lifetime": "detached"}
cache = Cache.options(name="cache", **how).remote()
other = Cache.options(name="other", **how).remote()
(folder / "cache").write_text(str(ray.get(cache.pid.remote())))
(folder / "other").write_text(str(ray.get(other.pid.remote())))
(folder / "daemon").write_text(str(ray.get(leaves_a_daemon.remote())))
(folder / "module").write_text(own_module.NAME)
until = time.time() + 60
while not ((folder / "plain").exists() and (folder / "uses_ray").exists()):
    assert time.time() < until
    time.sleep(0.1)  # between two looks at files of other processes
(folder / "all").touch()
time.sleep(600)  # there to be ended
"""


def pid_in(folder, name):
    return int((folder / name).read_text())


def external(mesh):
    """The commands of what is no work of the scheduler."""
    return sorted(str(job.get("entrypoint", "")) for job in mesh.external_usage()["jobs"])


def story(mesh, folder):
    (folder / "driver.py").write_text(DRIVER)
    (folder / "modules" / "own_module").mkdir(parents=True)
    (folder / "modules" / "own_module" / "__init__.py").write_text("NAME = 'found'")
    answer = mesh.submit_job(
        "train",
        [sys.executable, str(folder / "driver.py"), str(folder)],
        "p",
        {"cpu": 2},
        keep_actors=["outside/cache"],
        runtime_env={"py_modules": [folder / "modules" / "own_module"]},
    )
    assert answer["success"], answer
    until((folder / "all").exists, lambda: "".join(mesh.job_logs("train")), 120)
    names = ("plain", "uses_ray", "cache", "other", "daemon")
    pids = {name: pid_in(folder, name) for name in names}
    living = {name: process_exists(pid) for name, pid in pids.items()}
    listed = external(mesh)
    began = time.monotonic()
    assert mesh.cancel_task("train")["success"]
    took = time.monotonic() - began
    # A process that was sent its signal is there until the machine comes to it.
    mortal = [pid for name, pid in pids.items() if name != "cache"]
    until(lambda: not any(map(process_exists, mortal)), lambda: f"{pids}, {mesh.job_logs('train')}")
    after = {name: process_exists(pid) for name, pid in pids.items()}
    cache = ray.get_actor("cache", namespace="outside")
    return {
        "module": (folder / "module").read_text(),
        "living": sorted(name for name, lives in living.items() if lives),
        "external": listed,
        "stay": sorted(name for name, lives in after.items() if lives),
        "actors": actors_in("outside"),
        "cache": ray.get(cache.pid.remote()) == pids["cache"],
        "took_s": round(took, 1),
    }


def main():
    # The usual port of its agent, which takes submissions, may be that of another Ray on this machine.
    head = {
        "num_cpus": 4,
        "object_store_memory": 80_000_000,
        "include_dashboard": True,
        "dashboard_port": 0,
        "dashboard_agent_listen_port": 0,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        mesh = RayScheduler("mesh", state_path=str(Path(folder) / "state"))
        mesh.ensure_pool("p", resources={"cpu": 4})
        told = story(mesh, Path(folder))
        mesh.shutdown()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
