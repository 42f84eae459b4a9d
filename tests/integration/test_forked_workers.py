"""What tests on Ray see of its workers is what Ray starts, though most of them are forked."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import ray

from tests import forked_workers
from tests.integration.polling import until


@ray.remote(num_cpus=0)
class Worker:
    def about(self):
        return {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "group": os.getpgid(0),
            "program": sys.argv[0],
            "main": sys.modules["__main__"].__file__,
            "ours": [name for name in sys.modules if name.partition(".")[0] == "schedulemesh"],
        }

    def imports(self, name):
        """Import a module; returns the files of Python that were read, and the names of all modules then."""
        opened = []
        sys.addaudithook(lambda event, about: event == "open" and opened.append(str(about[0])))
        module = importlib.import_module(name)
        assert Path(module.__spec__.origin) == Path(module.__file__)
        return [file for file in opened if file.endswith((".py", ".pyc"))], set(sys.modules)


def about(**options):
    """What a new worker says of itself; it has ended then."""
    worker = Worker.options(**options).remote()
    told = ray.get(worker.about.remote())
    ray.kill(worker)
    return told


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")


def test_a_worker_runs_the_program_of_ray_and_has_loaded_nothing_else():
    worker = about()
    assert worker["group"] == worker["pid"]
    assert worker["program"] == worker["main"]
    assert Path(worker["main"]).name == "default_worker.py"
    assert worker["ours"] == []
    assert forked_workers.__file__ in command_of(worker["parent"])


def worker_of_many():
    """A worker that has loaded what an agent imports, without reading a file, and its modules then; None: it
    is one of the first of its template.
    """
    worker = Worker.remote()
    read, modules = ray.get(worker.imports.remote("schedulemesh.core.agent.host"))
    if not read:
        return worker, modules
    ray.kill(worker)
    return None


def test_what_agents_and_supervisors_import_is_loaded_and_hidden():
    worker, modules = until(worker_of_many, "no template has loaded it")
    assert "schedulemesh.core.agent.host" in modules
    assert "sqlalchemy" not in modules
    read, modules = ray.get(worker.imports.remote("schedulemesh.runtime.supervisor"))
    assert read == []
    assert "schedulemesh.runtime.supervisor" in modules
    ray.kill(worker)


def test_another_template_takes_the_place_of_one_that_has_ended():
    template = about()["parent"]
    os.kill(template, 9)
    until(lambda: not Path(f"/proc/{template}").exists(), "the template is still there")
    assert about()["parent"] != template


#: Templates that begin at the same moment, many times: each listens.
AT_ONCE = """
import os, sys
from tests.forked_workers import _listening

path = sys.argv[1]
for _ in range(100):
    reader, writer = os.pipe()
    children = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            os.read(reader, 1)
            _listening(path)
            os._exit(0)
        children.append(pid)
    os.write(writer, b"....")
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
"""


def test_templates_that_begin_at_once_do_not_end_one_another(tmp_path):
    command = [sys.executable, "-c", AT_ONCE, str(tmp_path / "template")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_ray_itself_starts_the_workers_of_a_runtime_environment():
    worker = about(runtime_env={"env_vars": {"ONLY": "here"}})
    assert worker["group"] == worker["pid"]
    assert "raylet" in Path(command_of(worker["parent"])[0]).name
