"""Calls whose answers many callers do not read: their refusals and warnings are logged."""

from __future__ import annotations

import logging

import pytest

from schedulemesh.client.asking import logged


@pytest.fixture
def warnings(caplog):
    """The warnings that were logged."""
    caplog.set_level(logging.WARNING, logger="schedulemesh.client.asking")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_refused_registration_is_logged_with_its_reason(warnings):
    refused = {"success": False, "error": "task 'a' exists", "reason": "duplicate_task"}
    assert logged("register_running_task", refused) is refused
    assert warnings() == ["register_running_task was refused: task 'a' exists (duplicate_task)"]


def test_each_warning_of_a_result_is_logged(warnings):
    logged("ensure_pool", {"success": True, "warnings": ["too large", "too wide"]})
    assert warnings() == ["ensure_pool: too large", "ensure_pool: too wide"]


def test_a_shortage_is_left_to_the_log_of_the_scheduler(warnings):
    logged("submit", {"success": False, "error": "full", "reason": "preemption_failed"})
    assert warnings() == []


def test_a_success_without_warnings_is_not_logged(warnings):
    logged("ensure_pool", {"success": True})
    assert warnings() == []
