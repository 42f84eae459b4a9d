"""What Ray Train logs of a lease that waits or is evicted: lines, and no traceback on the way to success."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("pandas", reason="pandas, which ray.train needs, is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # Ray Train's own


class WaitingLease:
    """One for which there is no capacity yet."""

    state = "queued"

    def wait(self, _timeout_s):
        return False

    def preempted(self):
        return False


@pytest.fixture
def train(monkeypatch, caplog):
    """The callback of a run whose lease waits, Ray Train's callers of it, and what is logged."""
    from ray.train.v2._internal.callbacks import placement_group_callback
    from ray.train.v2._internal.execution.callback_manager import CallbackManager
    from ray.train.v2._internal.execution.failure_handling.default import DefaultFailurePolicy
    from ray.train.v2.api.config import FailureConfig

    from schedulemesh.integrations import train

    cleaner = placement_group_callback.PlacementGroupCleanerCallback
    monkeypatch.setattr(cleaner, "after_worker_group_start", cleaner.after_worker_group_start)
    callback = train.LeasedWorkers("ppo", "rlhf")
    callback._terms = SimpleNamespace(request=lambda *_: WaitingLease())
    callback.after_controller_start(None)
    yield SimpleNamespace(
        callback=callback,
        manager=CallbackManager([callback]),
        policy=DefaultFailurePolicy(FailureConfig(max_failures=1)),
        log=lambda: "\n".join(caplog.handler.format(record) for record in caplog.records),
    )
    for name in train._LOGGERS_OF_ERRORS:
        logging.getLogger(name).removeFilter(train.expected_without_traceback)


@pytest.fixture(autouse=True)
def everything_is_logged(caplog):
    logger = logging.getLogger("ray.train")
    propagate, logger.propagate = logger.propagate, True
    caplog.set_level(logging.INFO, "ray.train")
    yield
    logger.propagate = propagate


CONTEXT = SimpleNamespace(
    num_workers=2, resources_per_worker={"CPU": 1.0}, placement_strategy="PACK"
)


def test_a_wait_for_the_lease_is_a_line(train):
    from ray.train.v2.api.exceptions import ControllerError

    with pytest.raises(ControllerError) as raised:
        train.manager.invoke("before_worker_group_start", CONTEXT)
    assert train.policy.make_decision(raised.value).value == "RETRY"
    assert "[FailurePolicy] RETRY" in train.log()
    assert "Traceback" not in train.log()
    assert "Exception raised" not in train.log()


def test_an_eviction_that_has_ended_the_workers_is_a_line(train):
    from ray.train.v2.api.exceptions import PreemptionError

    train.callback._lease = SimpleNamespace(state="preempting", preempted=lambda: True)
    status = SimpleNamespace(errors={0: RuntimeError("its actor died")})
    with pytest.raises(PreemptionError) as raised:
        train.callback.after_worker_group_poll_status(status)
    assert train.policy.make_decision(raised.value).value == "RETRY"
    assert "Source: preemption" in train.log()
    assert "Traceback" not in train.log()


def test_any_other_error_of_a_callback_keeps_its_traceback(train):
    from ray.train.v2.api.exceptions import ControllerError

    train.callback._terms = SimpleNamespace(request=lambda *_: 1 / 0)
    with pytest.raises(ControllerError):
        train.manager.invoke("before_worker_group_start", CONTEXT)
    assert "Exception raised in callback hook" in train.log()
    assert "ZeroDivisionError" in train.log()
    assert "Traceback" in train.log()
