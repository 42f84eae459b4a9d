"""What the demo shows is what the training has done."""

from __future__ import annotations

import io

from rich.console import Console

from schedulemesh.cli.demo import _watch


class Reports:
    """A scheduler whose training reports, and ends before its last step was looked at."""

    def __init__(self):
        self.metrics = [{}, {"step": 390, "loss": 2.75}]

    def list_tasks(self):
        if not self.metrics:
            return {"tasks": []}
        return {"tasks": [{"task_id": "t", "last_metrics": self.metrics.pop(0)}]}

    def result(self, task_id):
        assert task_id == "t"
        return {"result": {"step": 400, "loss": 2.5}}


def test_the_bar_of_a_training_ends_with_its_last_step_and_the_loss_of_that():
    shown = io.StringIO()
    _watch(Console(file=shown, width=80), Reports(), "t", 400, 400)
    assert "400/400  loss 2.5000" in shown.getvalue()
    assert "2.7500" not in shown.getvalue().splitlines()[-1]
