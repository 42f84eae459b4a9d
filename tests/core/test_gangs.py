"""Gangs as callers ask for them: equal replicas, members that differ, and what is refused."""

from __future__ import annotations

import json

import pytest
import ray

from schedulemesh.core.client.gangs import bundles_of, check_member, parse_gang
from schedulemesh.core.client.task_request import Caller, submission
from schedulemesh.domain.agent import AgentSpec, check_agent, gang_of
from schedulemesh.domain.payloads import SINGLE_PROCESS, GangPayload, MemberSpec
from schedulemesh.domain.resources import parse_resources, sum_of
from schedulemesh.errors import InvalidRequestError

ONE, TWO = {"cpu": 1}, {"cpu": 2}


def cpu(*amounts):
    return tuple(parse_resources({"cpu": amount}) for amount in amounts)


def test_a_call_without_gang_is_a_single_agent():
    assert parse_gang({"task_id": "t"}) is None


def test_equal_replicas_have_the_resources_of_the_call():
    gang = parse_gang({"replicas": 3, "placement": "strict_spread", "same_label": "rack"})
    assert gang.spec() == GangPayload(strategy="STRICT_SPREAD", same_label="rack")
    assert bundles_of(gang, ONE) == cpu(1, 1, 1)


def test_members_that_differ_fall_back_on_the_call():
    members = [{"resources": TWO}, {"replicas": 2, "actor_args": [1]}]
    gang = parse_gang({"members": members})
    assert bundles_of(gang, ONE) == cpu(2, 1, 1)
    assert gang.members[1] == {"actor_args": [1]}
    assert gang.members[1] is gang.members[2]


def test_the_core_of_an_elastic_gang_is_its_least():
    gang = parse_gang({"task_id": "t", "replicas": 5, "min_replicas": 2})
    assert (gang.size, gang.spec().replicas) == (2, 5)
    assert bundles_of(gang, ONE) == cpu(1, 1)
    assert parse_gang({"task_id": "t", "replicas": 5, "min_replicas": 5}).spec() == GangPayload()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 2.5}, "whole number"),
        ({"replicas": 5000}, "up to 1000 members"),
        ({"replicas": 2, "bundles": [ONE]}, "leave bundles out"),
        ({"replicas": 2, "members": [{}]}, "leave replicas out"),
        ({"members": []}, "at least one"),
        ({"members": [{"gpus": 1}]}, "it takes actor_args, actor_class"),
        ({"members": [7]}, r"members\[0\]"),
        ({"same_label": "rack"}, "replicas=N"),
        ({"min_replicas": 2}, "replicas=N"),
        ({"replicas": 2, "min_replicas": 3, "task_id": "t"}, "at most 2"),
        ({"replicas": 3, "min_replicas": 2}, "with a task"),
    ],
)
def test_what_is_no_gang_is_refused(given, says):
    with pytest.raises(InvalidRequestError, match=says):
        parse_gang(given)


def test_members_without_resources_are_refused():
    gang = parse_gang({"members": [{"resources": ONE}, {}]})
    with pytest.raises(InvalidRequestError, match="member 1 has none"):
        bundles_of(gang, None)


def test_a_constructor_that_needs_a_rank_is_accepted_in_a_gang_alone():
    class Member:
        def __init__(self, name, labels, *, rank):
            pass

    class Wrong:
        def __init__(self, name, labels, other):
            pass

    check_member(Member, (), {})
    with pytest.raises(InvalidRequestError, match="other"):
        check_member(Wrong, (), {})


def spec(gang, *amounts, options="{}"):
    bundles = cpu(*amounts)
    return AgentSpec(
        name="g",
        pool_name="p",
        resources=sum_of(bundles),
        bundles=bundles,
        payload=gang,
        options=options,
        class_key="0" * 64,
    )


@pytest.mark.parametrize(
    ("gang", "amounts", "options", "says"),
    [
        (GangPayload(), (), "{}", "has none"),
        (GangPayload(strategy="TIGHT"), (1,), "{}", "STRICT_PACK"),
        (GangPayload(members=(MemberSpec(class_key="0" * 64),)), (1, 1), "{}", "1 members, but 2"),
        (GangPayload(replicas=2, same_label="rack"), (1,), "{}", "same_label"),
        (GangPayload(replicas=2, strategy="STRICT_PACK"), (1,), "{}", "STRICT"),
        (GangPayload(replicas=1), (1, 1), "{}", "min_replicas"),
        (GangPayload(), (1,), '{"max_restarts": 1}', "max_restarts"),
    ],
)
def test_the_supervisor_checks_gangs_again(gang, amounts, options, says):
    with pytest.raises(InvalidRequestError, match=says):
        check_agent(spec(gang, *amounts, options=options))


def test_members_are_named_by_their_ranks():
    elastic = spec(GangPayload(replicas=4), 1, 1)
    assert elastic.process_names == ("g-0", "g-1")
    assert elastic.extra_names == ("g-2", "g-3")
    assert spec(SINGLE_PROCESS, 1).process_names == ("g",)
    assert gang_of("a-b-12") == ("a-b", 12)
    for name in ("g", "g-", "g-x", "g-01", "-1"):
        assert gang_of(name) is None


class Trainer:
    def __init__(self, name, labels):
        pass


class Rollout(Trainer):
    pass


def decorated(cls, **options):
    return ray.remote(**options)(cls)


def agent_of(*members, **call):
    """The agent of a gang with these members, each a class and what it takes."""
    listed = [{"actor_class": cls, "resources": resources} for cls, resources in members]
    arguments = {"pool_name": "p", "members": listed, **call}
    return submission(Caller(namespace="n", runtime_env={}), arguments).submission.agent


@pytest.mark.parametrize(
    ("trainer", "rollout", "says"),
    [
        (
            Trainer,
            decorated(Rollout, accelerator_type="A100"),
            r"rank 1 has accelerator_type 'A100', and that of rank 0 None",
        ),
        (
            decorated(Trainer, accelerator_type="A100"),
            Rollout,
            r"rank 1 has accelerator_type None, and that of rank 0 'A100'; .*ray_options",
        ),
        (
            decorated(Trainer, max_concurrency=2),
            decorated(Rollout, max_concurrency=3),
            "max_concurrency",
        ),
        (Trainer, decorated(Rollout, runtime_env={"env_vars": {"A": "b"}}), "runtime_env"),
        (Trainer, decorated(Rollout, num_gpus=2), "'num_gpus'.* is 2, but resources make it 0"),
    ],
)
def test_members_whose_classes_have_different_ray_options_are_refused(trainer, rollout, says):
    with pytest.raises(InvalidRequestError, match=says):
        agent_of((trainer, ONE), (rollout, ONE))


@pytest.mark.parametrize(
    ("classes", "call"),
    [
        ((decorated(Trainer, accelerator_type="A100"),) * 2, {}),
        (
            (
                decorated(Trainer, accelerator_type="A100", num_cpus=1),
                decorated(Rollout, accelerator_type="A100", num_cpus=2),
            ),
            {},
        ),
        (
            (Trainer, decorated(Rollout, accelerator_type="H100")),
            {"ray_options": {"accelerator_type": "A100"}},
        ),
    ],
)
def test_members_with_the_same_ray_options_have_these(classes, call):
    options = json.loads(agent_of((classes[0], ONE), (classes[1], TWO), **call).options)
    assert options == {"accelerator_type": "A100"}
