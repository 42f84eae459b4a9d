"""A TorchTrainer in a job: the script knows nothing of evictions, and its run resumes after one."""

from __future__ import annotations

import json
import sys

import pytest

from tests.docs.documents import ROOT
from tests.integration.polling import until

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas, which ray.train needs, is not installed")
pytestmark = [pytest.mark.timeout(800)]

#: With the same name and folder Ray Train restores a run that was interrupted.
SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import ray
from examples.train_under_a_lease import fit
from schedulemesh import job

ray.init()
result = fit("run", str(job.checkpoint_dir()), [], float(sys.argv[1]))
# A whole line in one call: Ray's threads write the logs of the workers to the same stream meanwhile.
line = f"\\nresult {{result.metrics['begin'] > 0}} {{result.metrics['loss']}}\\n"
print(line, end="", flush=True)
"""


def urgent():
    """Needs the whole pool for a moment."""


def has_checkpoint(folder):
    """Whether a run that is interrupted now resumes: Ray Train restores the checkpoints that its controller
    has recorded, which it does after all workers have reported; their folders are there before that.
    """
    try:
        for record in folder.rglob("checkpoint_manager_snapshot.json"):
            return bool(json.loads(record.read_text())["checkpoint_results"])
    except (json.JSONDecodeError, FileNotFoundError):
        pass  # it is being written, or a folder was removed that was being looked into
    return False


def result_of(scheduler, task_id):
    """Whether a run was resumed, and its loss, as its script has printed them."""
    assert scheduler.wait(task_id, timeout=300)["success"]
    said = "".join(scheduler.job_logs(task_id))
    line = next((line for line in said.splitlines() if line.startswith("result")), None)
    assert line is not None, said
    return line.split()[1:]


def test_an_evicted_job_resumes_and_ends_with_the_loss_of_an_undisturbed_one(scheduler, tmp_path):
    scheduler.create_pool("rlhf", resources={"cpu": 2})
    submitted = scheduler.submit_job(
        "evicted",
        [sys.executable, "-c", SCRIPT, "0.3"],
        "rlhf",
        {"cpu": 2},
        priority=1.0,
        checkpoint_dir=str(tmp_path),
        grace_s=0.0,  # within 30 s, as by default, the run would come to its end
    )
    assert submitted["success"], submitted
    until(lambda: has_checkpoint(tmp_path), "no checkpoint", 200)
    answer = scheduler.submit_task_with_preemption(
        "urgent", "rlhf", urgent, {"cpu": 2}, priority=50.0, wait=60
    )
    assert [task["task_id"] for task in answer["preempted"]] == ["evicted"]
    resumed, loss = result_of(scheduler, "evicted")
    scheduler.submit_job("undisturbed", [sys.executable, "-c", SCRIPT, "0"], "rlhf", {"cpu": 2})
    assert (resumed, *result_of(scheduler, "undisturbed")) == ("True", "False", loss)
