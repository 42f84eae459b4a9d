"""What a member of a gang learns of its rank."""

from __future__ import annotations

import os

import pytest

from schedulemesh.core.agent.ranks import rank_arguments, set_environment


class Both:
    def __init__(self, name, labels, size=1, *, rank, world_size):
        pass


class RankAlone:
    def __init__(self, name, labels, rank=None):
        pass


class Anything:
    def __init__(self, name, labels, *args, **kwargs):
        pass


class Plain:
    def __init__(self, name, labels):
        pass


@pytest.mark.parametrize(
    ("cls", "args", "kwargs", "expected"),
    [
        (Both, (), {}, {"rank": 2, "world_size": 4}),
        (Both, (), {"rank": 9}, {"world_size": 4}),
        (RankAlone, (), {}, {"rank": 2}),
        (RankAlone, (7,), {}, {}),
        (Anything, (), {}, {}),
        (Plain, (), {}, {}),
        (dict, (), {}, {}),
    ],
)
def test_a_constructor_gets_what_it_names_and_the_caller_has_not_given(cls, args, kwargs, expected):
    assert rank_arguments(cls, args, kwargs, 2, 4) == expected


def test_the_environment_is_as_distributed_programs_expect_it(monkeypatch):
    monkeypatch.setenv("RANK", "before")
    monkeypatch.setenv("WORLD_SIZE", "before")
    set_environment(3, 8)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("3", "8")
