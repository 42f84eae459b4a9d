"""What makes a submitted task run by itself, and what is refused before anything is sent."""

from __future__ import annotations

import pytest
import ray
from ray import ObjectRef

from schedulemesh.core.agent.function_agent import FunctionAgent
from schedulemesh.core.client.run_request import with_run
from schedulemesh.core.transport.user_code import load_arguments
from schedulemesh.errors import InvalidRequestError


def add(a, b=0):
    return a + b


class Trainer:
    def __init__(self, name, labels):
        pass

    def train(self, steps, *, rate=0.1):
        return steps

    def batches(self):
        yield 1

    @staticmethod
    def check(value):
        return value

    @classmethod
    def kind(cls, value):
        return value


def test_a_function_becomes_an_agent_that_is_built_with_its_arguments():
    given, blobs = with_run({"actor_class": add, "run_args": [1], "run_kwargs": {"b": 2}})
    assert given["actor_class"] is FunctionAgent
    assert (given["actor_args"], given["actor_kwargs"]) == ((add, 1), {"b": 2})
    assert (given["run"], blobs) == ("run", {})


@pytest.mark.parametrize("cls", [Trainer, ray.remote(Trainer)])
def test_the_arguments_of_a_method_are_stored(cls):
    given, blobs = with_run(
        {"actor_class": cls, "run": "train", "run_args": (3,), "run_kwargs": {"rate": 0.5}}
    )
    assert load_arguments(blobs[given["run_key"]], (), ()) == ((3,), {"rate": 0.5})


@pytest.mark.parametrize("method", ["check", "kind"])
def test_static_and_class_methods_can_be_run(method):
    given, blobs = with_run({"actor_class": Trainer, "run": method, "run_args": (3,)})
    assert list(blobs) == [given["run_key"]]


def test_a_submission_without_a_run_is_as_it_was():
    given = {"actor_class": Trainer}
    assert with_run(given) == (given, {})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"actor_class": Trainer, "run": "fly"}, "has no method 'fly'"),
        ({"actor_class": Trainer, "run": "_train"}, "the name of a public method"),
        ({"actor_class": Trainer, "run": 3}, "the name of a public method"),
        ({"actor_class": Trainer, "run": "batches"}, "is a generator"),
        ({"actor_class": Trainer, "run": "train"}, "missing a required argument: 'steps'"),
        ({"actor_class": Trainer, "run_args": (1,)}, "arguments of the method that run names"),
        ({"actor_class": Trainer, "run": "train", "run_args": "abc"}, "run_args must be a list"),
        ({"actor_class": add}, "missing a required argument: 'a'"),
        ({"actor_class": add, "run": "x", "run_args": (1,)}, "run belongs to a class"),
        ({"actor_class": add, "actor_args": (1,)}, "actor_args belongs to a class"),
        ({"actor_class": 5, "run": "train"}, "must be a class or a function, not 5"),
        (
            {"actor_class": Trainer, "run": "check", "run_args": ([ObjectRef.nil()],)},
            "cannot hold object references",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_sent(given, error):
    with pytest.raises(InvalidRequestError, match=error):
        with_run(given)


def produce():
    yield 1


@pytest.mark.parametrize(
    ("target", "error"),
    [
        (produce, "the function produce is a generator"),
        (ray.remote(add), "submit the function without that decorator"),
    ],
)
def test_a_function_that_could_only_fail_is_refused_at_once(target, error):
    with pytest.raises(InvalidRequestError, match=error):
        with_run({"actor_class": target, "run_args": [1]})
