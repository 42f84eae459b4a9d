"""Every example tells its story, and every runnable block of the documents runs, on real Ray.

This Ray has eight CPUs; tests/clusters/test_examples_on_two_cpus.py runs the examples on two.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray

from tests.docs.documents import ROOT, Block, blocks, pages
from tests.docs.gallery import check_output
from tests.integration.leftovers import ended_after_an_error
from tests.integration.polling import actors_in, groups_in, until

EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py") if p.stem != "__init__")
#: Run by test_train.py, which has what it needs, and by tests/sim, because it needs no Ray.
RUN_ELSEWHERE = {"train_under_a_lease", "what_if"}
#: The Chinese README has the same code as the English one, which tests/docs checks.
RUNNABLE = [p for p in pages() if ".zh-" not in p.name and any(b.runnable for b in blocks(p))]


@pytest.fixture(autouse=True)
def no_leftover_schedulers():
    """Examples clean up after themselves."""
    yield
    until(lambda: not actors_in("schedulemesh"), lambda: f"left: {actors_in('schedulemesh')}")
    assert ray.is_initialized()


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in RUN_ELSEWHERE])
def test_an_example_prints_what_its_page_shows(name, capsys):
    importlib.import_module(f"examples.{name}").main()
    check_output(name, capsys.readouterr().out)


def test_files_are_written_to_the_given_folder(tmp_path):
    importlib.import_module("examples.preemption_file_state").main(str(tmp_path / "states"))
    assert {p.name for p in (tmp_path / "states").iterdir()} == {
        "counting.json",
        "counting.restored",
    }


def run_script(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A script as a user would run it, on the Ray of this run."""
    address = ray.get_runtime_context().gcs_address
    return subprocess.run(
        [sys.executable, *options, name],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_example_is_a_script():
    done = run_script("examples/preemption_demo.py")
    assert done.returncode == 0, done.stderr
    assert "done by agent-1" in done.stdout


def test_an_example_that_fails_exits_with_an_error(tmp_path):
    code = (ROOT / "examples" / "preemption_demo.py").read_text(encoding="utf-8")
    broken = tmp_path / "broken_demo.py"
    broken.write_text(code.replace("incoming_task_priority=5.0", "incoming_task_priority=1.5"))
    done = run_script(str(broken))
    assert done.returncode == 1
    assert "below_same_pool_threshold" in done.stderr or "should_preempt" in done.stderr


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page):
    run_page(page)


#: A page that uses both GPUs and then fails.
FAILING = """
<!-- runnable -->
```python
from schedulemesh import AgentActor, SimpleScheduler

mesh = SimpleScheduler("failing")
groups = {"enable": True, "high_priority_pg_specs": [{"cpu": 1, "gpu": 1}]}
assert mesh.ensure_pool("pool", resources={"cpu": 2, "gpu": 2}, pg_pool_config=groups)["success"]
assert mesh.submit("task", "pool", AgentActor, resources={"cpu": 1, "gpu": 1})["success"]
LAST
```
"""


@pytest.mark.parametrize("last", ["1 / 0", "del mesh; 1 / 0"])
def test_a_page_that_fails_leaves_nothing_in_ray(tmp_path, last):
    page = tmp_path / "failing.md"
    page.write_text(FAILING.replace("LAST", last), encoding="utf-8")
    other = ForeignActor.options(name="of others", namespace="others").remote()
    assert ray.get(other.answers.remote())
    with pytest.raises(ZeroDivisionError):
        run_page(page)
    assert actors_in("schedulemesh") == []
    assert groups_in() == {}
    assert ray.get(other.answers.remote()), "it was there before the page"
    until(lambda: ray.available_resources().get("GPU") == 2.0, "the GPUs are not free again")


@ray.remote(num_cpus=0)
class ForeignActor:
    """An actor that no page made."""

    def answers(self) -> bool:
        """True, while it lives."""
        return True


def test_what_ray_reports_is_not_what_a_block_prints():
    with contextlib.redirect_stdout(PrintedHere()) as printed:
        reports = threading.Thread(target=print, args=("(raylet) WARNING: 8 processes",))
        reports.start()
        reports.join()
        print("1 worker")
    assert printed.getvalue() == "1 worker\n"


class PrintedHere(io.StringIO):
    """What the thread that made this prints; a thread of Ray's prints its warnings whenever they come."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        """Store the text if this thread printed it; returns its length."""
        return super().write(text) if threading.get_ident() == self._thread else len(text)


def run_page(page: Path) -> None:
    """Run a page's blocks and compare what they print; one that fails leaves nothing in Ray."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    with ended_after_an_error(names):
        for block in blocks(page):
            if block.runnable:
                printed = run(block, names)
            elif block.output:
                assert comparable(printed) == comparable(block.code), block


def comparable(printed: str) -> str:
    """Without what differs from run to run: seconds, generated names, and which of equal ranks it was."""
    printed = re.sub(r"\d+\.\d+ s\b", "0 s", printed)
    return re.sub(r"(-agent-)[0-9a-f]{6}\b|(rollout-)\d", r"\1\2N", printed)


def run(block: Block, names: dict[str, object]) -> str:
    """Run a block as if it were pasted; returns what it prints. An error names page and line."""
    lines = "\n" * (block.line - 1) + block.code
    with contextlib.redirect_stdout(PrintedHere()) as printed:
        exec(compile(lines, str(block.page), "exec"), names)
    return printed.getvalue()
