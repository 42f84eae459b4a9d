"""The shorter words, from a process that has no Ray yet and from one that has."""

from __future__ import annotations

from tests.integration.agents import Counter, Plain
from tests.integration.drivers import run_driver
from tests.integration.polling import assert_nothing_held, quota


def test_it_connects_to_the_ray_of_its_environment_and_leaves_it(namespace, tmp_path):
    told = run_driver(
        f"""
        ray.shutdown()
        from schedulemesh.simple import SimpleScheduler

        simple = SimpleScheduler(namespace={namespace!r})
        simple.ensure_pool("pool", resources={{"cpu": 1}})
        answer = simple.submit("t", pool="pool", actor_class=AgentActor, resources={{"cpu": 1}})
        print(answer["success"], ray.get(answer["agent"]["handle"].process.remote(7))["payload"])
        simple.shutdown()
        print(ray.is_initialized())
        """,
        tmp_path,
    )
    assert told.split() == ["True", "7", "True"]


def test_pools_are_created_resized_and_kept(make_simple):
    simple = make_simple()
    assert simple.ensure_pool("pool", resources={"cpu": 2.0})["detail"] == "created"
    assert simple.ensure_pool("pool", resources={"cpu": 2.0})["detail"] == "unchanged"
    assert simple.submit("t", pool="pool", actor_class=Plain, resources={"cpu": 1.5})["success"]
    assert simple.ensure_pool("pool", resources={"cpu": 3.0})["detail"] == "changed"
    assert quota(simple.scheduler, "pool")["free"] == {"cpu": 1.5}
    smaller = simple.ensure_pool("pool", resources={"cpu": 1.0})
    assert (smaller["success"], smaller["detail"]) == (True, "changed")
    assert "cpu 1.5 in use, 0.5 above the new quota" in smaller["warnings"][0]
    assert simple.complete("t")["success"]
    again = simple.complete("t")
    assert (again["success"], again["reason"]) == (False, "task_not_found")
    assert_nothing_held(simple.scheduler)


def test_a_preempted_task_is_found_and_restored(make_simple):
    simple = make_simple()
    simple.ensure_pool("pool", resources={"cpu": 1.0})
    simple.submit("low", pool="pool", actor_class=Counter, actor_kwargs={"start": 3}, priority=1.0)
    assert simple.submit("high", pool="pool", actor_class=Plain, priority=9.0)["success"]
    saved = simple.get_saved_state("low")["saved_state"]
    assert saved["state"] == {"count": 3}
    no_room = simple.restore_task(saved)
    assert (no_room["success"], no_room["resubmitted"]) == (False, False)
    simple.delete_agent(simple.list_agents()["agents"][0]["name"])
    assert simple.restore_task(saved)["state_restored"] is True
    (agent,) = simple.list_agents("pool")["agents"]
    assert agent["tasks"] == ["low"]


def test_a_pool_is_chosen_by_its_labels(make_simple):
    simple = make_simple()
    simple.ensure_pool("cpu-pool", labels={"stage": "pre", "gpu": "no"}, resources={"cpu": 2.0})
    simple.ensure_pool("gpu-pool", labels={"stage": "rl"}, resources={"cpu": 1.0, "gpu": 1.0})

    def ask(need=None, **selector):
        return simple.submit(
            "t",
            actor_class=Plain,
            resources=need or {"cpu": 1.0},
            pool_selector=selector,
            dry_run=True,
        )

    def chosen(**selector):
        return ask(**selector)["agent"]["name"].partition("-agent-")[0]

    assert chosen(stage="rl") == "gpu-pool"
    assert chosen(stage=["pre", "sft"]) == "cpu-pool"
    assert chosen(gpu={"exists": False}) == "gpu-pool"
    assert chosen(stage={"not_in": ["pre"]}) == "gpu-pool"
    assert ask(stage="none")["reason"] == "no_matching_pool"
    assert ask(need={"gpu": 1}, stage="pre")["reason"] == "no_matching_pool"
    answer = simple.submit("t", actor_class=Plain, resources={"gpu": 1}, pool_selector={})
    assert answer["agent"]["labels"] == {"pool": "gpu-pool", "stage": "rl"}


def test_a_cluster_that_requires_a_token_is_joined_by_its_address(namespace, tmp_path):
    """As from another shell: the environment knows nothing but the address."""
    told = run_driver(
        f"""
        address = ray.get_runtime_context().gcs_address
        ray.shutdown()
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ["RAY_ADDRESS"] = address
        code = '''
        import ray
        from schedulemesh.simple import SimpleScheduler
        simple = SimpleScheduler(namespace={namespace!r})
        print(ray.get_runtime_context().gcs_address)
        simple.shutdown()
        '''
        import subprocess, textwrap
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
        )
        print(address == done.stdout.strip())
        print(done.stderr)
        """,
        tmp_path,
    )
    same, said = told.split("\n", 1)
    assert same == "True", said
    assert "[INFO] joined the Ray cluster at" in said
    assert "(RAY_ADDRESS=" in said
    assert max(map(len, said.splitlines())) <= 100, said
