"""A TorchTrainer in a lease: evicted, resumed from its checkpoint, with the result of an undisturbed run."""

from __future__ import annotations

import pytest
import ray

from tests.docs.gallery import check_output
from tests.integration.polling import groups_in, until

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas, which ray.train needs, is not installed")
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray Train's own
]


def test_an_evicted_run_resumes_and_ends_with_the_loss_of_an_undisturbed_one(ray_cluster, capsys):
    from examples.train_under_a_lease import main

    evicted, undisturbed = main()
    assert evicted.metrics["loss"] == undisturbed.metrics["loss"]
    assert evicted.metrics["begin"] > 0
    assert undisturbed.metrics["begin"] == 0
    said = capsys.readouterr().out
    check_output("train_under_a_lease", said)
    assert "evicted for it: ['ppo-7']" in said
    assert "urgent work: done" in said
    until(lambda: not groups_in("schedulemesh"), lambda: f"left in Ray: {groups_in()}")
    assert ray.is_initialized()
