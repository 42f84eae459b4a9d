"""What names of repeated runs have in common."""

import pytest

from schedulemesh.domain.task_kinds import name_pattern


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train-17", "train-*"),
        ("train-17-18", "train-*"),
        ("ppo", "ppo"),
        ("resnet50-run3", "resnet*-run*"),
        ("eval_2026-11-23T10:15_7", "eval_*"),
        ("run-20261123T101500Z", "run-*"),
        ("sweep-550e8400-e29b-41d4-a716-446655440000", "sweep-*"),
        ("sft-b8f3a2c", "sft-*"),
        ("facade-2", "facade-*"),
        ("deadbeef", "deadbeef"),
        ("17", "*"),
        ("训练-3", "训练-*"),
    ],
)
def test_what_differs_from_run_to_run_is_a_star(name, pattern):
    assert name_pattern(name) == pattern


def test_a_pattern_is_its_own_pattern():
    assert name_pattern(name_pattern("a-1_b.22")) == name_pattern("a-1_b.22")
