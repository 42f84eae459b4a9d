"""Wrong arguments of public calls are told in the words of the call."""

from __future__ import annotations

import inspect
from typing import TypedDict

import pytest
import ray

from schedulemesh.client.arguments import check_constructor, public
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.core.client.task_request import unwrap
from schedulemesh.core.worker_groups.group import WorkerGroup
from schedulemesh.errors import InvalidRequestError, nearest, nearest_names
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec


class Labels(TypedDict, total=False):
    labels: dict[str, str]


class Calls:
    @public()
    def submit(self, task_id, pool_name=None, resources=None, priority=5.0):
        """Take it."""
        return task_id, pool_name, resources, priority

    @public(Labels)
    def more(self, task_id, **fields):
        return fields

    @public()
    def broken(self, task_id):
        return task_id + 1


def test_arguments_that_it_has_pass():
    assert Calls().submit("t", priority=1) == ("t", None, None, 1)
    assert Calls().more("t", labels={}) == {"labels": {}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"prioritty": 3}, r"submit\(\) has no argument 'prioritty' \(did you mean 'priority'"),
        ({"pool": "p"}, "'pool' .did you mean 'pool_name'"),
        ({"num_gpus": 1}, r"'num_gpus'; say resources=\{'gpu'"),
        ({"zzz": 1}, "'zzz'; it takes pool_name, priority, resources, task_id"),
    ],
)
def test_an_unknown_argument_names_the_nearest(given, says):
    with pytest.raises(InvalidRequestError, match=says):
        Calls().submit("t", **given)
    with pytest.raises(InvalidRequestError, match=r"'label' .did you mean 'labels'"):
        Calls().more("t", label={})


@pytest.mark.parametrize("word", ["foo", "bar", "x"])
def test_a_word_that_is_similar_to_no_argument_gets_no_hint(word):
    names = {"pool", "pool_name", "labels", "task_id", "priority", "resources", "wait", "queue"}
    assert nearest(word, names) == ""


def test_a_name_out_of_many_is_found_by_its_beginning_or_end():
    names = [f"team-{number:05}" for number in range(20_000)] + ["production"]
    assert nearest("prodution", names) == " (did you mean 'production'?)"
    assert nearest("roduction", names) == " (did you mean 'production'?)"
    assert nearest("p" * 100_000, names) == ""
    assert nearest_names("prodution", names, 3) == ["production"]


def test_the_signature_lists_the_fields_as_keywords_with_their_defaults():
    assert str(inspect.signature(Calls.more)) == "(self, task_id, *, labels: dict[str, str] = None)"
    submit = inspect.signature(RayScheduler.submit_task_with_preemption).parameters
    assert submit["priority"].default == 5.0
    assert submit["dry_run"].default is False
    assert submit["labels"].kind is inspect.Parameter.KEYWORD_ONLY
    assert not [p for p in submit.values() if p.kind is p.VAR_KEYWORD]


def test_too_few_and_too_many_arguments_are_reported():
    with pytest.raises(InvalidRequestError, match="task_id"):
        Calls().submit()
    with pytest.raises(InvalidRequestError, match="positional"):
        Calls().submit(1, 2, 3, 4, 5)


def test_a_type_error_of_its_own_is_not_taken_for_wrong_arguments():
    with pytest.raises(TypeError, match="concatenate"):
        Calls().broken("t")


def test_editors_see_the_signature():
    assert list(inspect.signature(Calls.submit).parameters)[1] == "task_id"
    assert Calls.submit.__doc__ == "Take it."


@pytest.mark.parametrize("cls", [RayScheduler, SimpleScheduler])
def test_every_public_call_reports_an_unknown_argument(cls):
    scheduler = cls.__new__(cls)
    scheduler._connection = None
    for name, call in inspect.getmembers(cls, inspect.isfunction):
        if name.startswith("_"):
            continue
        parameters = inspect.signature(call).parameters.values()
        needed = {p.name: None for p in parameters if p.default is p.empty and p.name != "self"}
        given = {k: v for k, v in needed.items() if k not in ("fields", "changes")}
        with pytest.raises(InvalidRequestError, match=r"no (argument )?'no_such_thing'"):
            call(scheduler, **given, no_such_thing=1)


@pytest.mark.parametrize("cls", [RayScheduler, SimpleScheduler])
def test_every_call_that_takes_a_pool_knows_it_as_pool_and_as_pool_name(cls):
    naming_a_pool = [
        name
        for name, call in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
        and {"pool", "pool_name"} & set(inspect.signature(call).parameters)
    ]
    assert {"lease", "submit_job", "list_agents", "drain_pool", "history"} <= set(naming_a_pool)
    for name in naming_a_pool:
        with pytest.raises(InvalidRequestError, match="pool and pool_name, which mean the same"):
            getattr(cls.__new__(cls), name)(pool="p", pool_name="p")


def test_classes_report_unknown_arguments_too():
    for call, given in (
        (RayScheduler.attach, "state"),
        (RayScheduler, "detach"),
        (SimpleScheduler, "detach"),
        (ScheduleMeshHead, "state"),
        (WorkerGroup, "handle"),
        (WorkerGroup.of_agents, "timeout"),
    ):
        with pytest.raises(InvalidRequestError, match=f"has no argument '{given}' .did you mean"):
            call(**{given: "x"})
    with pytest.raises(InvalidRequestError, match=r"'taskid' .did you mean 'task_id'"):
        SimpleTaskSpec(taskid="t", actor_class=AgentActor)


class TakesNothing:
    pass


class TakesName:
    def __init__(self, name):
        self.name = name


class TakesMore:
    def __init__(self, name, labels, steps, *, lr=0.1):
        self.steps = steps


class Keywords:
    def __init__(self, *, name, labels):
        self.name = name


class Anything:
    def __init__(self, *args, **kwargs):
        self.args = args


class Hostile(type):
    @property
    def __signature__(cls):
        raise RuntimeError("no")


class HostileSignature(metaclass=Hostile):
    pass


@pytest.mark.parametrize("cls", [TakesNothing, TakesName, Keywords])
def test_a_class_without_name_and_labels_is_refused(cls):
    with pytest.raises(InvalidRequestError, match=r"name and labels first: def __init__\(self"):
        check_constructor(cls, (), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "steps"),
        ((1, 2), {}, "too many"),
        ((1,), {"speed": 2}, "speed"),
        ((1,), {"name": "x"}, "name"),
    ],
)
def test_arguments_that_the_class_does_not_take_are_refused(args, kwargs, says):
    with pytest.raises(InvalidRequestError, match=f"actor_args and actor_kwargs.*{says}"):
        check_constructor(TakesMore, args, kwargs)


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        (TakesMore, (1,), {"lr": 1.0}),
        (Anything, (1, 2), {"a": 3}),
        (AgentActor, (), {}),
        (HostileSignature, (), {}),
    ],
)
def test_a_class_that_takes_them_passes(cls, args, kwargs):
    check_constructor(cls, args, kwargs)


def test_a_decorated_class_is_unwrapped():
    cls, _ = unwrap(ray.remote(TakesName))
    with pytest.raises(InvalidRequestError, match="name and labels first"):
        check_constructor(cls, (), {})
