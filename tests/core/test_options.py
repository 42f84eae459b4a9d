"""Ray options: what passes, what contradicts the ledger, what the scheduler decides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedulemesh.config.groups import parse_bundles
from schedulemesh.core.backend.ray_options import parse_options
from schedulemesh.core.backend.ray_resources import (
    bundle_amounts,
    labels_of,
    ray_amounts,
    requested_resources,
    resources_of,
)
from schedulemesh.domain.resources import Resources, parse_resources
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.submissions import Submitter, lease_request

NEED = parse_resources({"cpu": 2, "memory": 512, "gpu": 0.5, "custom": {"accelerator": 1}})


def options(given=None, *, beneath=None, need=NEED, job_env=None):
    found = parse_options(given, beneath or {}, need, job_env or {}, "callers")
    return json.loads(found.encoded), found.choose_node


def test_none_are_none():
    assert options() == ({}, True)


def test_lists_of_packages_are_read_where_the_agent_is_submitted(tmp_path, monkeypatch):
    (tmp_path / "requirements.txt").write_text("numpy==1\n")
    monkeypatch.chdir(tmp_path)
    found, _ = options(
        {"runtime_env": {"pip": "requirements.txt"}}, job_env={"pip": ["of-the-job"]}
    )
    read = {"packages": ["numpy==1"], "pip_check": False}
    assert found["runtime_env"]["pip"] == read
    with pytest.raises(InvalidRequestError, match="uv"):
        options({"runtime_env": {"uv": "missing.txt"}})


def test_own_options_go_over_those_of_the_decorator():
    beneath = {"max_restarts": 2, "max_concurrency": 4, "num_returns": 1, "lifetime": None}
    found, _ = options({"max_restarts": 1}, beneath=beneath)
    assert found == {"max_restarts": 1, "max_concurrency": 4}


@pytest.mark.parametrize(
    "amounts",
    [
        {"num_cpus": 2},
        {"num_gpus": 0.5},
        {"memory": 512 * 2**20},
        {"resources": {"accelerator": 1}},
        {"num_cpus": None},
    ],
)
def test_the_same_amount_may_be_repeated(amounts):
    assert options(amounts)[0] == {}
    assert options(beneath=amounts)[0] == {}


@pytest.mark.parametrize(
    "amounts",
    [
        {"num_cpus": 1},
        {"num_gpus": 1},
        {"memory": 512},
        {"resources": {"accelerator": 2}},
        {"resources": {}},
    ],
)
def test_another_amount_contradicts_the_ledger(amounts):
    (name,) = amounts
    for how in ({"given": amounts}, {"beneath": amounts}):
        with pytest.raises(InvalidRequestError, match=rf"ray_options\['{name}'\]"):
            options(**how)


AMOUNTS = st.floats(1e-4, 64, allow_subnormal=False)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "CPU": AMOUNTS | st.fractions(0, 4, max_denominator=16).map(float),
            "GPU": st.fractions(0, 1, max_denominator=16).map(float) | st.floats(1e-4, 1),
            "memory": st.integers(1, 2**45) | st.floats(1, 2**40),
            "accelerator": AMOUNTS,
        },
    )
)
def test_a_bundle_holds_no_less_than_was_requested(asked):
    needed = requested_resources(asked)
    bundle = bundle_amounts(needed)
    for name, amount in asked.items():
        unit = 2**20 / 10_000 + 2 if name == "memory" else 2 / 10_000
        assert amount <= bundle.get(name, 0.0) <= amount + unit
    # What Ray says is held is what was claimed.
    assert resources_of(bundle) == needed
    assert parse_resources(needed.public()) == needed or needed.gpu > 10_000


@given(
    part=st.integers(1, 100),
    whole=st.integers(1, 100),
    memory=st.integers(2**20, 2**45) | st.just(10**9),
)
def test_a_bundle_of_a_lease_holds_what_its_holder_claims_in_ray(part, whole, memory):
    cpu, gpu = max(part, whole) / whole, min(part, whole) / whole
    needs = {"cpu": cpu, "gpu": gpu, "memory": memory / 2**20}
    (leased,) = parse_bundles([needs], covering=True)
    bundle = bundle_amounts(leased)
    assert bundle["CPU"] >= cpu
    assert bundle["GPU"] >= gpu
    assert memory <= bundle["memory"] <= memory + 2**20 / 10_000 + 2
    assert resources_of(bundle) == leased
    assert parse_bundles([leased.public()], covering=True) == (leased,)


def test_the_bundles_of_a_lease_are_rounded_up():
    arguments = {"task_id": "t", "pool": "p", "groups": [[{"memory": 10**9 / 2**20}]]}
    request = lease_request(arguments, Submitter(client="c", owner="o"), holder_job="")
    (bundle,) = request.submission.agent.bundles
    assert bundle_amounts(bundle)["memory"] >= 10**9


def test_three_leases_of_four_thirds_of_a_cpu_are_four_cpus():
    (leased,) = parse_bundles([{"cpu": 4 / 3}], covering=True)
    assert leased.times(3).fits(parse_resources({"cpu": 4}))


@pytest.mark.parametrize("parts", [*range(1, 17), 17, 23, 97])
def test_a_device_has_as_many_equal_shares_as_ray_gives_it(parts):
    units = requested_resources({"GPU": 1 / parts}).gpu
    assert units == round(10_000 / parts)


def test_amounts_without_resources_belong_into_resources():
    with pytest.raises(InvalidRequestError, match="say it in resources"):
        options({"num_cpus": 1}, need=None)
    assert options(beneath={"num_cpus": 1}, need=None)[0] == {}, "the pool's default wins"


@pytest.mark.parametrize("name", ["lifetime", "namespace", "get_if_exists", "nonsense"])
def test_what_the_scheduler_decides_is_refused(name):
    with pytest.raises(InvalidRequestError, match=f"'{name}'; allowed are accelerator_type"):
        options({name: "x"})


def test_a_name_is_the_callers():
    assert options({"name": "mine"})[0] == {"name": "mine", "namespace": "callers"}


def test_a_spread_agent_is_placed_by_ray():
    spread = {"scheduling_strategy": "SPREAD"}
    assert options(spread) == (spread, False)
    assert options({"scheduling_strategy": "DEFAULT"})[1]


MODEL = ("ray.io/accelerator-type", "A100")
ZONE_A, ZONE_B = ("zone", "a"), ("zone", "!in(b, c)")


@pytest.mark.parametrize(
    ("given", "expected", "fallbacks"),
    [
        ({"accelerator_type": "A100"}, (MODEL,), ()),
        ({"label_selector": {"zone": "a"}}, (ZONE_A,), ()),
        ({"label_selector": {"zone": "a"}, "accelerator_type": "A100"}, (MODEL, ZONE_A), ()),
        ({"label_selector": {"zone": "a"}, "scheduling_strategy": "SPREAD"}, (ZONE_A,), ()),
        ({"fallback_strategy": [{"label_selector": {"zone": "a"}}]}, (), ()),
        (
            {
                "label_selector": {"zone": "a"},
                "fallback_strategy": [{"label_selector": {"zone": "!in(b, c)"}}],
                "accelerator_type": "A100",
            },
            (MODEL, ZONE_A),
            ((MODEL, ZONE_B),),
        ),
    ],
)
def test_labels_are_what_the_scheduler_chooses_the_node_by(given, expected, fallbacks):
    found = parse_options(given, {}, NEED, {}, "callers")
    assert found.choose_node
    assert (found.node_labels, found.fallback_labels) == (expected, fallbacks)
    assert json.loads(found.encoded) == given, "Ray gets them where the scheduler knows no nodes"


@pytest.mark.parametrize(
    "condition", ["in()", "!", "!!a", "in(a", "(a)", "a b", "in(a,,b)", 3, None]
)
def test_a_malformed_condition_is_refused_with_those_that_are_allowed(condition):
    with pytest.raises(InvalidRequestError, match="label_selector"):
        options({"label_selector": {"zone": condition}})


def test_the_model_of_a_node_is_its_label_or_else_its_marker():
    model, label = "accelerator_type:H100", "ray.io/accelerator-type"
    assert labels_of({"zone": "a"}, {model: 1.0, "GPU": 1.0}) == {"zone": "a", label: "H100"}
    assert labels_of({label: "A100"}, {model: 1.0}) == {label: "A100"}
    # Nothing says which GPU is which model, so that the node counts as one.
    assert labels_of({}, {model: 1.0, "accelerator_type:B200": 1.0}) == {label: "B200"}
    assert labels_of({}, {"GPU": 1.0}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrency", "many"),
        ("max_concurrency", 0),
        ("max_concurrency", 10**12),
        ("max_restarts", -7),
        ("max_restarts", 1.5),
        ("max_pending_calls", 10**30),
        ("max_task_retries", float("nan")),
        ("runtime_env", 3),
        ("runtime_env", {"env_vars": {"A": 1}}),
        ("concurrency_groups", 3),
        ("enable_tensor_transport", "yes"),
        ("scheduling_strategy", "wherever"),
        ("label_selector", "SPREAD"),
        ("accelerator_type", 3),
        ("name", "a\nb"),
        ("name", ""),
    ],
)
def test_values_that_ray_would_refuse_later_are_refused_at_once(name, value):
    with pytest.raises(InvalidRequestError, match="ray_options"):
        options({name: value})


@pytest.mark.parametrize(
    "of_the_class", [{"concurrency_groups": {"io": 2}}, {"enable_tensor_transport": True}]
)
def test_options_of_the_class_are_taken(of_the_class):
    assert options(of_the_class)[0] == of_the_class


def test_the_jobs_environment_is_passed_on():
    job = {"env_vars": {"A": "job", "B": "job"}, "pip": ["x"]}
    assert options(job_env=job)[0] == {"runtime_env": job}
    found, _ = options({"runtime_env": {"env_vars": {"A": "own"}}}, job_env=job)
    assert found["runtime_env"] == {"env_vars": {"A": "own", "B": "job"}, "pip": ["x"]}
    assert options({"runtime_env": {}})[0] == {}


def test_only_plain_data_is_kept():
    with pytest.raises(InvalidRequestError, match=r"ray_options\['scheduling_strategy'\]"):
        options({"max_restarts": 1, "scheduling_strategy": object()})
    with pytest.raises(InvalidRequestError, match="must be a dict"):
        options("max_restarts=1")


def test_amounts_are_converted_to_ray_and_back():
    assert ray_amounts(NEED) == {
        "num_cpus": 2.0,
        "num_gpus": 0.5,
        "memory": 512 * 2**20,
        "resources": {"accelerator": 1.0},
    }
    assert "memory" not in ray_amounts(Resources(cpu=1))
    seen = {
        "CPU": 2.0,
        "GPU": 0.5,
        "memory": 512.0 * 2**20,
        "accelerator": 1.0,
        "object_store_memory": 1e9,
        "node:10.0.0.1": 1.0,
        "accelerator_type:H100": 1.0,
        # what a placement group's bundles add, whole and by index
        "CPU_group_98e80c1069d3332a204c30d0539b01000000": 3.0,
        "CPU_group_0_98e80c1069d3332a204c30d0539b01000000": 2.0,
        "accelerator_group_1_98e80c1069d3332a204c30d0539b01000000": 1.0,
        "bundle_group_0_98e80c1069d3332a204c30d0539b01000000": 1000.0,
    }
    assert resources_of(seen) == NEED
    assert resources_of({"my_group_1": 2.0}).custom == (("my_group_1", 20_000),)


def test_a_bundle_holds_what_is_not_zero_with_memory_in_bytes():
    assert bundle_amounts(NEED) == {
        "CPU": 2.0,
        "GPU": 0.5,
        "memory": 512 * 2**20,
        "accelerator": 1.0,
    }
    assert bundle_amounts(Resources(cpu=1)) == {"CPU": 0.0001}
