"""User code that raises, hangs, crashes or cannot travel costs its own task, and nobody else's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import pytest
import ray

from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from tests.integration.agents import Counter, Exiting, Hung, Plain, Raising
from tests.integration.drivers import import_file, run_driver
from tests.integration.polling import (
    assert_nothing_held,
    process_exists,
    quota,
    touched,
    until,
)

ONE = {"cpu": 1.0}


@pytest.fixture
def pool(scheduler):
    """A pool of one CPU, and patience with agents that are slow on a busy machine."""
    scheduler.create_pool("pool", resources=ONE)
    scheduler.update_preemption_policy(start_timeout=30.0, cancel_timeout=30.0)
    return scheduler


def submit(scheduler, task_id, cls, priority=5.0, **more):
    return scheduler.submit_task_with_preemption(
        task_id=task_id,
        pool_name="pool",
        resources=ONE,
        priority=priority,
        actor_class=cls,
        **more,
    )


def running(scheduler):
    return {t["task_id"] for t in scheduler.list_tasks()["tasks"]}


def handle_of(scheduler, task_id):
    return next(a["handle"] for a in scheduler.list_agents()["agents"] if task_id in a["tasks"])


class TestAConstructorThat:
    """What happens while the agent is built."""

    def test_raises(self, pool):
        answer = submit(pool, "t", Raising, actor_args=["init"])
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert "RuntimeError: raised in init" in answer["error"]
        assert "schedulemesh/core" not in answer["error"]
        assert_nothing_held(pool)

    def test_ends_the_process(self, pool):
        answer = submit(pool, "t", Exiting)
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert "its process ended" in answer["error"]
        assert_nothing_held(pool)

    @pytest.mark.parametrize("where", ["init", "argument", "restart"])
    def test_raises_what_ends_every_process_that_unpickles_it(self, pool, where):
        class ProcessExiting(BaseException):
            def __reduce__(self):
                return os._exit, (1,)

        class Raising(Plain):
            def __init__(self, name, labels, *args):
                if where == "init":
                    raise ProcessExiting("raised in init")

            def restore_state(self, saved):
                raise ProcessExiting("raised in restore_state")

            def save_state(self):
                return 1

        @ray.remote(max_retries=0)
        def failing():
            raise ProcessExiting("raised in a task")

        def process():
            return pool.about()["pid"]

        before = process()
        if where == "restart":
            assert submit(pool, "t", Raising)["success"]
            answer = pool.restore_task(pool.preempt_task("t")["preempted"][0]["saved_state"])
        else:
            # the caller would not survive its own fetch of that error; the supervisor must not fetch it
            args = [failing.remote()] if where == "argument" else []
            answer = submit(pool, "t", Raising, actor_args=args)
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert process() == before, "the supervisor still runs"
        assert_nothing_held(pool)

    def test_hangs(self, pool, tmp_path):
        pool.update_preemption_policy(start_timeout=1.5)
        answer = submit(pool, "t", Hung, actor_args=["init", str(tmp_path / "mark")])
        assert (answer["success"], answer["reason"]) == (False, "agent_start_timeout")
        assert "start_timeout = 1.5 s" in answer["error"]
        assert_nothing_held(pool)

    @pytest.mark.parametrize(
        ("cls", "args", "reason"),
        [
            (Raising, ["init"], "agent_start_failed"),
            (Exiting, [], "agent_start_failed"),
            (Hung, ["init", "MARK"], "agent_start_timeout"),
        ],
        ids=["raises", "exits", "hangs"],
    )
    def test_fails_after_an_eviction_gives_the_victim_back(self, pool, tmp_path, cls, args, reason):
        victim = submit(pool, "victim", Counter, 1.0, agent_name="counter")["agent"]["handle"]
        old_pid = ray.get(victim.pid.remote())
        assert ray.get(victim.add.remote(7)) == 7
        # The probe of the class and the new start of the victim have as long as the policy says.
        limits = {"start_limits": {"constructor": 1.5}} if cls is Hung else {}
        args = [str(tmp_path / "mark") if a == "MARK" else a for a in args]
        answer = submit(pool, "t", cls, 9.0, actor_args=args, **limits)
        assert (answer["success"], answer["reason"]) == (False, reason)
        assert answer["restarted"] == ["victim"]
        assert answer["not_restarted"] == []

        def again():
            agents = pool.list_agents()["agents"]
            return agents and agents[0]["state"] == "running" and agents[0]["handle"]

        handle = until(again, "the victim does not run again")
        assert ray.get(handle.add.remote(0)) == 7
        assert ray.get(handle.pid.remote()) != old_pid
        assert running(pool) == {"victim"}
        assert quota(pool, "pool")["used"] == ONE
        pool.complete_task("victim", end_agent=True)
        assert_nothing_held(pool)


class TestAClassThat:
    """What happens before anything is built."""

    def test_cannot_be_pickled(self, pool):
        held = socket.socket()

        class Holding(Plain):
            line = held

        try:
            with pytest.raises(ValueError, match="the class Holding cannot be pickled"):
                submit(pool, "t", Holding)
        finally:
            held.close()
        assert_nothing_held(pool)

    def test_cannot_be_loaded_evicts_nobody(self, pool, tmp_path):
        submit(pool, "victim", Counter, 1.0)
        pid = ray.get(handle_of(pool, "victim").pid.remote())
        answer = submit(pool, "t", running_on_load("raise ImportError('no such thing')"), 9.0)
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert "nobody was evicted" in answer["error"]
        assert "no such thing" in answer["error"]
        pool.update_preemption_policy(start_timeout=1.5)
        answer = submit(
            pool, "t", running_on_load("import threading; threading.Event().wait()"), 9.0
        )
        assert (answer["success"], answer["reason"]) == (False, "agent_start_timeout")
        assert "nobody was evicted" in answer["error"]
        pool.update_preemption_policy(start_timeout=30.0)
        answer = submit(pool, "t", running_on_load("import os; os._exit(1)"), 9.0)
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert running(pool) == {"victim"}
        assert ray.get(handle_of(pool, "victim").pid.remote()) == pid
        assert pool.get_preemption_stats()["total_preemptions"] == 0

    def test_is_defined_in_a_module_of_the_job(self, pool, tmp_path, monkeypatch):
        """Two modules of one name, one after the other: each agent gets its own."""
        for answer, folder in ((1, tmp_path / "a"), (2, tmp_path / "b")):
            (folder / "inner").mkdir(parents=True)
            (folder / "inner" / "shared_name_deep.py").write_text(f"DEEP = {answer}\n")
            (folder / "shared_name.py").write_text(
                "from shared_name_deep import DEEP\n"
                "class Agent:\n"
                "    def __init__(self, name, labels): pass\n"
                f"    def which(self): return ({answer}, DEEP)\n"
            )
            with monkeypatch.context() as patch:
                patch.chdir(folder)
                import_file(patch, folder / "inner" / "shared_name_deep.py")
                module = import_file(patch, folder / "shared_name.py")
                result = submit(pool, f"t{answer}", module.Agent)
            assert result["success"], result
            assert ray.get(result["agent"]["handle"].which.remote()) == (answer, answer)
            pool.complete_task(f"t{answer}", end_agent=True)

    def test_shares_its_modules_name_with_another_jobs(self, namespace, make_scheduler, tmp_path):
        """Two jobs at the same time, each with a module of the same name."""
        mine = make_scheduler("shared", detached=True)
        mine.create_pool("pool", resources={"cpu": 2.0})
        for which in ("first", "second"):
            folder = tmp_path / which
            folder.mkdir()
            (folder / "agent_of_job.py").write_text(
                "class Agent:\n"
                "    def __init__(self, name, labels): pass\n"
                f"    def which(self): return {which!r}\n"
            )
            done = run_driver(
                f"""
                from agent_of_job import Agent
                scheduler = RayScheduler.attach("shared", namespace={namespace!r})
                answer = scheduler.submit_task_with_preemption(
                    task_id={which!r}, pool_name="pool", resources={{"cpu": 1.0}}, actor_class=Agent
                )
                assert answer["success"], answer
                print(ray.get(answer["agent"]["handle"].which.remote()))
                """,
                folder,
            )
            assert done.strip() == which
        # both live on after their jobs, and nobody mixed them up
        told = {t: ray.get(handle_of(mine, t).which.remote()) for t in ("first", "second")}
        assert told == {"first": "first", "second": "second"}


class TestAVictimWhose:
    """What happens while a task is evicted."""

    @pytest.mark.parametrize("where", ["cancel", "save_state"])
    def test_method_hangs_is_ended_in_time(self, pool, tmp_path, where):
        mark = tmp_path / "mark"
        # Within this time its process has to begin with the method.
        limit = "cancel_timeout" if where == "cancel" else "save_timeout"
        pool.update_preemption_policy(**{"cancel_timeout": 1.0, limit: 6.0})
        victim = submit(pool, "victim", Hung, 1.0, actor_args=[where, str(mark)])
        pid = ray.get(victim["agent"]["handle"].pid.remote())
        answer = submit(pool, "t", Plain, 9.0)
        assert answer["success"], answer
        assert mark.exists()
        assert not process_exists(pid)
        stored = pool.get_saved_state("victim")
        (record,) = pool.list_preemptions()["preemptions"]
        if where == "save_state":
            assert stored["reason"] == "state_not_found"
            assert record["state_saved"] is False
            assert "no answer within 6 s" in record["save_error"]
        else:
            assert stored["saved_state"]["source"] == "save_state"
            assert "warning" not in stored["saved_state"]
            assert record["state_saved"] is True

    def test_cancel_hangs_loses_its_agent_in_a_manual_preemption(self, pool, tmp_path):
        pool.update_preemption_policy(cancel_timeout=1.0)
        victim = submit(pool, "victim", Hung, 1.0, actor_args=["cancel", str(tmp_path / "mark")])
        pid = ray.get(victim["agent"]["handle"].pid.remote())
        answer = pool.execute_preemption("victim", victim["agent"]["name"])
        assert answer["success"]
        assert answer["cancel_success"] is False
        assert "did not return within 1 s" in answer["error"]
        until(lambda: not process_exists(pid), "the hung agent still runs")
        until(lambda: not pool.list_agents()["agents"], "the hung agent is still listed")
        assert_nothing_held(pool)

    def test_methods_raise_is_saved_as_far_as_known(self, pool):
        submit(pool, "victim", Raising, 1.0, actor_args=["save_state"], payload={"epoch": 3})
        answer = submit(pool, "t", Raising, 3.0, actor_args=["cancel"], agent_name="second")
        assert answer["success"], answer
        assert pool.get_saved_state("victim")["reason"] == "state_not_found"
        (record,) = pool.list_preemptions()["preemptions"]
        assert "raised in save_state" in record["save_error"]
        result = pool.execute_preemption("t", "second")
        assert (result["success"], result["cancel_success"]) == (False, False)
        assert result["reason"] == "not_cancelled"
        assert "raised in cancel" in result["error"]
        assert [a["name"] for a in pool.list_agents()["agents"]] == ["second"]

    def test_preserver_raises_or_hangs(self, pool, tmp_path):
        def raising(task_state):
            raise OSError("disk full")

        def hanging(task_state):
            import threading

            threading.Event().wait()

        def no_dict(task_state):
            return 7

        for preserver, save_timeout, says in (
            (raising, 30.0, "disk full"),
            (hanging, 1.5, "not done after 1.5 s"),
            (no_dict, 30.0, "must return a dict"),
        ):
            pool.update_preemption_policy(save_timeout=save_timeout)
            pool.register_state_handlers("pool", preserver=preserver)
            pool.register_running_task("job", "nobody", "pool", payload=[1])
            saved = pool.execute_preemption("job", "nobody")["saved_state"]
            assert (saved["source"], saved["payload"]) == ("payload", [1])
            assert says in saved["warning"], saved["warning"]

    def test_preserver_fails_is_saved_by_its_agent(self, pool):
        def raising(task_state):
            raise OSError("disk full")

        pool.register_state_handlers("pool", preserver=raising)
        agent = submit(pool, "job", Counter, actor_args=[4])["agent"]
        saved = pool.execute_preemption("job", agent["name"])["saved_state"]
        assert (saved["source"], saved["state"]) == ("save_state", {"count": 4})
        assert "disk full" in saved["warning"]

    def test_process_was_killed_before(self, pool):
        victim = submit(pool, "victim", Counter, 1.0)["agent"]
        os.kill(ray.get(victim["handle"].pid.remote()), 9)
        answer = submit(pool, "t", Plain, 9.0)
        assert answer["success"], answer
        assert running(pool) == {"t"}

    def test_method_still_runs(self, pool, tmp_path):
        """A method that never ends and knows no cancel: its process goes."""
        mark = tmp_path / "mark"

        class Spinning(Plain):
            def spin(self):
                mark.touch()
                while True:
                    pass

        victim = submit(pool, "victim", Spinning, 1.0)["agent"]["handle"]
        pid = ray.get(victim.pid.remote())
        spinning = victim.spin.remote()
        until(touched(mark), "it does not spin")
        assert submit(pool, "t", Plain, 9.0)["success"]
        assert not process_exists(pid)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(spinning)


def running_on_load(statement):
    """A class whose bytes run a statement where they are loaded, and not where they are made."""

    class Trap:
        def __reduce__(self):
            return exec, (statement,)

    class Trapped(Plain):
        trap = Trap()

    return Trapped


def test_a_method_that_raises_leaves_the_agent_alive(pool):
    agent = submit(pool, "t", Raising, actor_args=["nowhere"])["agent"]["handle"]
    with pytest.raises(ValueError, match="the work raised"):
        ray.get(agent.work.remote())
    assert ray.get(agent.process.remote(payload=1))["payload"] == 1


def test_the_supervisor_never_loads_user_code(pool, tmp_path):
    """The class says where it was loaded: in the probe and the agent, not in the supervisor."""
    log = tmp_path / "pids"
    source = f"import os; open({str(log)!r}, 'a').write(f'{{os.getpid()}} ')"

    submit(pool, "victim", Counter, 1.0)
    agent = submit(pool, "t", running_on_load(source), 9.0)["agent"]["handle"]
    pid = ray.get(agent.pid.remote())
    loaded_in = {int(p) for p in log.read_text().split()}
    assert pid in loaded_in
    assert len(loaded_in) == 2, "in the probe and in the agent"
    supervisor = ray.get(pool.supervisor_handle().__ray_call__.remote(lambda _self: os.getpid()))
    assert supervisor not in loaded_in


def test_the_demo_of_a_script_is_main(tmp_path, namespace):
    """Classes of a script's own ``__main__`` are shipped, from any folder."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(f"""
        import ray
        from schedulemesh.core import RayScheduler
        from beside import TWICE

        class Mine:
            def __init__(self, name, labels): pass
            def double(self, n): return TWICE * n

        ray.init(log_to_driver=False, logging_level="ERROR")
        scheduler = RayScheduler("main", namespace={namespace!r})
        scheduler.create_pool("pool", resources={{"cpu": 1}})
        agent = scheduler.create_agent("a", "pool", Mine)["agent"]["handle"]
        print(ray.get(agent.double.remote(21)))
        scheduler.shutdown()
        """)
    )
    (tmp_path / "beside.py").write_text("TWICE = 2\n")
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "RAY_ADDRESS": address},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # Ray tells each driver of workers that others have lost.
    assert "42" in done.stdout.splitlines(), done.stdout


class TestStringsThatCannotBeEncoded:
    """Lone surrogates, as undecodable file names have them, numbers beyond 64 bits, endless texts."""

    def test_in_errors(self, pool):
        class Garbling(Plain):
            def __init__(self, name, labels, where="init"):
                if where == "init":
                    raise OSError("no file \udcff" + "x" * 100_000)

            def save_state(self):
                raise OSError("no file \udcff")

            def cancel(self, task_id):
                raise OSError("no file \udcff")

        answer = submit(pool, "t", Garbling)
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
        assert "no file \\udcff" in answer["error"]
        assert len(answer["error"]) < 20_000
        agent = submit(pool, "t", Garbling, actor_args=["later"])["agent"]
        result = pool.execute_preemption("t", agent["name"])
        assert "no file \\udcff" in result["error"]
        assert "no file \\udcff" in result["saved_state"]["warning"]

        def preserver(task_state):
            raise OSError("no file \udcff")

        pool.register_state_handlers("pool", preserver=preserver)
        pool.register_running_task("u", agent["name"], "pool")
        result = pool.execute_preemption("u", agent["name"])
        assert "no file \\udcff" in result["saved_state"]["warning"]

    def test_in_metrics_and_saved_states(self, pool):
        class Reporting(MetricsReportingAgent):
            def report(self, **metrics):
                return self.report_metrics(metrics, at_once=True)

            def save_state(self):
                return {"name": "\udcff", "n": 2**70}

        agent = submit(pool, "t", Reporting)["agent"]
        metrics = {"hash": 2**70, "file": "\udcff", "loss": float("nan"), "kind": object}
        assert ray.get(agent["handle"].report.remote(**metrics))
        until(lambda: pool.list_tasks()["tasks"][0]["last_metrics"], "no metrics arrive")
        saved = pool.execute_preemption("t", agent["name"])["saved_state"]
        assert saved["state"] == {"name": "\udcff", "n": 2**70}
        assert saved["last_metrics"]["hash"] == float(2**70)


def test_a_constructor_that_exits_is_a_failed_start(pool):
    class Leaving(Plain):
        def __init__(self, name, labels):
            sys.exit(0)

    answer = submit(pool, "t", Leaving)
    assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
    assert_nothing_held(pool)


def test_a_state_that_cannot_be_restored_is_kept(pool):
    class Picky(Counter):
        def restore_state(self, saved):
            if saved["count"] < 10:
                raise ValueError("too little")
            super().restore_state(saved)

    submit(pool, "t", Picky)
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    answer = pool.restore_task(saved)
    assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
    assert "too little" in answer["error"]
    assert_nothing_held(pool)
    assert pool.get_saved_state("t")["saved_state"]["state"] == {"count": 0}
    answer = pool.restore_task({**saved, "state": {"count": 10}})
    assert answer["state_restored"] is True
    assert ray.get(answer["agent"]["handle"].add.remote()) == 11


def test_a_class_without_restore_state_starts_from_scratch(pool):
    submit(pool, "t", Plain)
    saved = pool.preempt_task("t")["preempted"][0]["saved_state"]
    answer = pool.restore_task(saved)
    assert (answer["success"], answer["state_restored"]) == (True, False)


def test_a_victim_gets_a_preemption_notice(pool, tmp_path):
    mark = tmp_path / "told"

    class Details(Plain):
        def on_preemption_notice(self, deadline_s):
            mark.write_text(str(deadline_s))

        def save_state(self):
            return {}

    # A notice is withdrawn from a process that has not asked for commands within a second, and one that is
    # slow to act on it is ended with the grace.
    pool.update_preemption_policy(preemption_grace_s=5.0)
    submit(pool, "victim", Details, 1.0)
    assert pool.save_task_state("victim")["success"], "it executes commands"
    assert submit(pool, "t", Plain, 9.0)["success"]
    assert mark.read_text() == "5.0"


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrency": -1},
        {"max_restarts": "many"},
        {"scheduling_strategy": "NOWHERE"},
        {"concurrency_groups": {"io": "all"}},
        {"label_selector": 3},
        {"runtime_env": {"env_vars": {"A": 1}}},
        {"runtime_env": {"working_dir": "/no/such/folder"}},
    ],
    ids=lambda o: next(iter(o)),
)
def test_options_that_ray_refuses(pool, options):
    """The answer is a refusal or an error, and comes at once; either way nothing is held."""
    try:
        answer = submit(pool, "t", Plain, ray_options=options)
    except (ValueError, TypeError):
        pass
    else:
        assert (answer["success"], answer["reason"]) == (False, "agent_start_failed")
    assert_nothing_held(pool)
