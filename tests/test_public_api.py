"""Every path, name, signature and default that the documents promise."""

from __future__ import annotations

import dataclasses
import importlib
import inspect

import msgspec
import pytest

PROMISED = {
    "schedulemesh": ["__version__", "RayScheduler", "SimpleScheduler", "SimpleTaskSpec"],
    "schedulemesh.simple": ["SimpleScheduler", "SimpleTaskSpec"],
    "schedulemesh.core": ["RayScheduler"],
    "schedulemesh.core.client.scheduler": ["RayScheduler"],
    "schedulemesh.core.agent.agent_actor": ["AgentActor"],
    "schedulemesh.core.agent.metrics_agent": ["MetricsReportingAgent"],
    "schedulemesh.runtime.agents.eviction": ["TaskState"],
    "schedulemesh.config.policy": ["PreemptionPolicy", "PreemptionAggressiveness"],
    "schedulemesh.errors": ["ScheduleMeshError", "InvalidRequestError"],
    "examples.training_preemption_demo": ["TrainingAgentActor"],
}


@pytest.mark.parametrize(("module", "names"), PROMISED.items(), ids=PROMISED)
def test_promised_names_are_where_they_are_promised(module, names):
    found = importlib.import_module(module)
    for name in names:
        assert getattr(found, name) is not None


def test_the_package_offers_its_public_names_and_every_error():
    import schedulemesh
    from schedulemesh import errors

    raised = {n for n, v in vars(errors).items() if inspect.isclass(v)}
    assert raised <= set(schedulemesh.__all__)
    assert set(schedulemesh.__all__) <= set(dir(schedulemesh))
    for name in schedulemesh.__all__:
        assert getattr(schedulemesh, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = schedulemesh.Nonsense


def test_there_is_one_ray_scheduler():
    import schedulemesh.core
    from schedulemesh.core.client.scheduler import RayScheduler

    assert schedulemesh.RayScheduler is RayScheduler
    assert schedulemesh.core.RayScheduler is RayScheduler
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = schedulemesh.core.Nonsense


def parameters(function):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }


REQUIRED = inspect.Parameter.empty


def test_signatures_of_the_quick_reference():
    from schedulemesh.core import RayScheduler
    from schedulemesh.simple import SimpleScheduler

    assert parameters(RayScheduler.create_pool) == {
        "name": REQUIRED,
        "labels": None,
        "resources": None,
        "target_agents": 0,
        "max_run_s": None,
        "default_max_run_s": None,
        "idle_s": None,
        "min_priority": None,
        "max_priority": None,
        "owner_limits": None,
        "owner_order": "none",
        "budget": None,
        "owner_budgets": None,
        "flavors": None,
        "placement_strategy": "STRICT_PACK",
        "pg_pool_config": None,
        "on_preempted": "drop",
        "queueing": "best_effort",
        "cohort": msgspec.UNSET,
        "lending_limit": msgspec.UNSET,
        "borrowing_limit": msgspec.UNSET,
        "weight": msgspec.UNSET,
    }
    create = parameters(RayScheduler.create_agent)
    assert list(create)[:5] == ["name", "pool", "actor_class", "resources", "ray_options"]
    assert create["resources"] is create["ray_options"] is None
    assert parameters(RayScheduler.list_agents) == {"pool_name": None}
    for scheduler in (RayScheduler, SimpleScheduler):
        delete = parameters(scheduler.delete_agent)
        assert delete == {"name": REQUIRED, "force": False, "destroy_pg": None}


TAKEN_EVERYWHERE = {
    "priority": 5.0,
    "labels": None,
    "actor_args": None,
    "actor_kwargs": None,
    "agent_name": None,
    "estimated_duration": None,
    "payload": None,
    "ray_options": None,
    "bundles": None,
}


def test_every_way_of_submitting_takes_the_same():
    from schedulemesh.core import RayScheduler
    from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

    submit = parameters(RayScheduler.submit_task_with_preemption)
    spec = {f.name: f.default for f in dataclasses.fields(SimpleTaskSpec)}
    for found in (submit, spec):
        assert {name: found[name] for name in TAKEN_EVERYWHERE} == TAKEN_EVERYWHERE
    given = set(spec) - {"pool"} | {"pool_name"}
    assert given <= set(submit)
    assert list(parameters(SimpleScheduler.submit))[:3] == ["task_id", "pool", "actor_class"]


#: Fields of TaskSpec that callers know under another name.
ARGUMENTS = {
    "pool_name": {"pool_name", "pool"},
    "payload_key": {"payload"},
    "run_key": {"run_args", "run_kwargs"},
    "parent": {"detached"},
}
#: Fields that only a submitted task has.
SUBMITTED = {
    "array",
    "after",
    "topology",
    "run",
    "run_key",
    "max_retries",
    "on_restore_failure",
    "on_oom",
    "oom_max_memory",
}


def test_every_submitting_call_takes_every_field_of_a_task():
    from schedulemesh.core import RayScheduler
    from schedulemesh.domain.task import PARSERS, TaskSpec
    from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec

    set_by_the_scheduler = {
        "asked_priority",
        "full_priority",
        "extra_of",
        "evict_pools",
        "array_id",
        "array_index",
    }
    assert set(TaskSpec.__struct_fields__) == set(PARSERS) | set_by_the_scheduler
    for call in (
        RayScheduler.submit_task_with_preemption,
        RayScheduler.submit_with_pg_preemption,
        RayScheduler.register_running_task,
        SimpleScheduler.submit,
        SimpleScheduler.submit_with_pg_preemption,
        SimpleTaskSpec,
    ):
        taken = set(inspect.signature(call).parameters)
        missing = {field for field in PARSERS if not taken & ARGUMENTS.get(field, {field})}
        registers = call is RayScheduler.register_running_task
        assert missing == (SUBMITTED if registers else set()), call


#: Fields of an agent's object, which a job or a lease does not have.
OF_AGENTS = {"payload_key", "run", "run_key", "on_restore_failure"}
#: Fields that say what happens after an end; a lease is never started again.
OF_RETRIES = {"max_retries", "on_oom", "oom_max_memory", "on_preempted", "on_time_limit"}
#: Fields of what runs by itself, which the holder of a lease does.
OF_RUNS = {"array"}
#: The options of commands that are called otherwise than the argument, beside those that fields declare.
OPTIONS = {"pool_name": {"pool"}, "labels": {"label"}, "parent": {"detached"}}


def test_jobs_and_leases_take_every_field_of_a_task_on_every_surface():
    """A new field of a task is forgotten nowhere: it gets there, or is named above."""
    from typer.main import get_command

    from schedulemesh.cli.app import app
    from schedulemesh.core import RayScheduler
    from schedulemesh.domain.task import FIELDS, PARSERS
    from schedulemesh.server.bodies import NewJob, NewLease

    def of_call(name):
        return set(inspect.signature(getattr(RayScheduler, name)).parameters)

    def of_command(name):
        return {option.name for option in get_command(app).commands[name].params}

    declared = {name: field.option.name for name, field in FIELDS.items() if field.option}
    options = OPTIONS | {name: {option} for name, option in declared.items() if option}
    surfaces = {
        "submit_job": (of_call("submit_job"), ARGUMENTS, set()),
        "POST /jobs": (set(NewJob.__struct_fields__), {}, set()),
        "schedulemesh submit": (of_command("submit"), options, set()),
        # It has one bundle, on its own node.
        "schedulemesh lease": (
            of_command("lease"),
            options,
            OF_RETRIES | OF_RUNS | {"topology", "parent"},
        ),
        "schedulemesh adopt": (
            of_command("adopt"),
            options,
            OF_RETRIES | OF_RUNS | {"after", "topology", "parent"},
        ),
        "lease": (of_call("lease"), ARGUMENTS, OF_RETRIES | OF_RUNS),
        "POST /leases": (
            set(NewLease.__struct_fields__),
            {"pool_name": {"pool"}},
            OF_RETRIES | OF_RUNS,
        ),
        # It runs already, outside of any task.
        "adopt_job": (
            of_call("adopt_job"),
            ARGUMENTS,
            {*OF_RETRIES, *OF_RUNS, "parent", "after", "topology"},
        ),
    }
    for surface, (taken, names, absent) in surfaces.items():
        missing = {field for field in PARSERS if not taken & names.get(field, {field})}
        assert missing - OF_AGENTS == absent - taken, surface


def test_signatures_of_agents():
    from schedulemesh.core.agent.agent_actor import AgentActor

    process = parameters(AgentActor.process)
    assert list(process) == ["payload", "task_id", "simulated_duration"]
    assert list(parameters(AgentActor.cancel)) == ["task_id"]
    assert next(iter(parameters(AgentActor.invoke))) == "method"


def test_the_simple_scheduler_has_every_documented_method():
    from schedulemesh.simple import SimpleScheduler

    for word in (
        "ensure_pool",
        "resize_pool",
        "configure_preemption",
        "update_preemption_policy",
        "submit",
        "submit_spec",
        "submit_with_pg_preemption",
        "pg_pool_stats",
        "complete",
        "delete_agent",
        "stats",
        "get_preemption_stats",
        "shutdown",
    ):
        assert callable(getattr(SimpleScheduler, word))


def test_defaults_of_the_policy():
    from schedulemesh.config.policy import PreemptionPolicy

    defaults = msgspec.structs.asdict(PreemptionPolicy())
    assert defaults == {
        "same_pool_priority_threshold": 1.0,
        "cross_pool_priority_threshold": 5.0,
        "remaining_time_weight": 0.1,
        "victim_order": "score",
        "min_preempt_score": 0.5,
        "enable_cross_pool_preemption": True,
        "protected_pools": (),
        "label_preemption_rules": {},
        "label_priority_threshold": 0.5,
        "enable_label_preemption": True,
        "label_dominance_protects": True,
        "cancel_timeout": 5.0,
        "save_timeout": 30.0,
        "start_timeout": 120.0,
        "preemption_grace_s": 0.0,
        "min_runtime": 0.0,
        "max_preemptions": 5,
        "preemption_cooldown": 0.0,
        "lost_work_budget": 0.0,
        "usage_half_life_s": 86400.0,
        "reclaim_unsavable": True,
        "defragment_after_s": 0.0,
        "idle_gpu_percent": 0.0,
        "idle_gpu_s": 600.0,
        "measured_progress": False,
        "over_claim": "warn",
        "over_claim_s": 60.0,
        "evict_despite_external_demand": False,
        "allow_exec": False,
        "topology_levels": (),
        "priority_classes": {},
        "links": {},
    }


def test_a_malformed_request_is_a_value_error():
    from schedulemesh import errors

    assert issubclass(errors.InvalidRequestError, (errors.ScheduleMeshError, ValueError))
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if error.__module__ != errors.__name__:
            continue
        assert issubclass(error, errors.ScheduleMeshError), name
        assert str(error()) == (error.__doc__ or "").strip(), "the docstring is the default message"


def test_a_task_state_has_what_the_handlers_read():
    from schedulemesh.runtime.agents.eviction import TaskState

    fields = {f.name for f in dataclasses.fields(TaskState)}
    assert {"task_id", "pool_name", "payload", "priority", "labels", "agent_name"} <= fields


def test_every_public_method_says_what_it_does():
    from schedulemesh.core import RayScheduler
    from schedulemesh.simple import SimpleScheduler

    for cls in (RayScheduler, SimpleScheduler):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                assert inspect.getdoc(method), f"{cls.__name__}.{name}"


def test_both_schedulers_follow_tasks_with_the_same_calls():
    from schedulemesh.core import RayScheduler
    from schedulemesh.simple import SimpleScheduler

    for name in ("wait", "result", "future", "cancel_task"):
        signature = inspect.signature(getattr(RayScheduler, name))
        assert inspect.signature(getattr(SimpleScheduler, name)) == signature, name
