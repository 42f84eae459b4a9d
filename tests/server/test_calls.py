"""Every call over HTTP does and shows what the Python call does, and its answer is of the documented type."""

from __future__ import annotations

import msgspec
import pytest

from schedulemesh.config.settings import JournalSettings
from schedulemesh.engine.state import request_updates
from schedulemesh.server import bodies
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.history import QUESTIONS
from schedulemesh.server.openapi import document
from schedulemesh.server.reads import LISTINGS, SINGLES
from schedulemesh.server.task_reads import TASK_READS
from tests.runtime.composition import InThread
from tests.server.local import Api
from tests.server.work import filled, lease


@pytest.fixture
def busy(mesh, api):
    """An API whose scheduler has pools, agents, tasks that run and wait, and a preemption."""
    filled(mesh)
    return api


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.path)
def test_rows_have_the_documented_fields(busy, listing):
    answer = busy.get(listing.path)
    assert answer["total"] == len(answer["items"])
    known = set(listing.row.__annotations__)
    for row in answer["items"]:
        assert set(row) <= known, set(row) - known
        msgspec.convert(row, listing.row)
    if listing.path in ("/pools", "/agents", "/tasks", "/queue", "/nodes", "/preemptions"):
        assert answer["items"], "nothing was seen"


@pytest.mark.parametrize("single", SINGLES, ids=lambda single: single.path)
def test_single_objects_are_read(busy, single):
    answer = busy.get(
        single.path.replace("{pool_name:name}", "p").replace("{task_id:name}", "first")
    )
    assert answer["success"]
    if single.answer is not None:
        assert set(answer) <= set(single.answer.__annotations__)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/pools/none", "pool_not_found"),
        ("/pools/none/placement_groups", "pool_not_found"),
        ("/agents/none", "agent_not_found"),
        ("/nodes/none", "node_not_found"),
        ("/nodes?host=none", "node_not_found"),
        ("/cohorts/none", "cohort_not_found"),
        ("/tasks/none", "task_not_found"),
    ],
)
def test_what_does_not_exist_is_not_found(busy, path, reason):
    assert busy.get(path, 404)["reason"] == reason


def test_one_row_is_read_by_its_name(busy):
    assert busy.get("/pools/p")["resources"] == {"cpu": 2.0}
    assert busy.get("/agents/first-agent")["tasks"] == ["first"]


def test_rows_are_filtered_sorted_and_paged_on_the_server(busy):
    running = busy.get("/tasks?phase=queued&sort=-priority&limit=1")
    assert [row["task_id"] for row in running["items"]] == ["waits-2"]
    assert running["total"] == 2
    rest = busy.get(f"/tasks?phase=queued&sort=-priority&limit=1&cursor={running['next']}")
    assert [row["task_id"] for row in rest["items"]] == ["waits-1"]
    assert rest["next"] is None
    assert busy.get("/tasks?phaze=queued", 400)["reason"] == "invalid_request"


def test_a_pool_is_created_renamed_and_ends(api):
    made = api.send("POST", "/pools", {"name": "a", "resources": {"cpu": 1}}, 200)
    assert (made["detail"], made["pool"]["resources"]) == ("created", {"cpu": 1.0})
    other = api.send("POST", "/pools", {"name": "a", "resources": {"cpu": 2}}, 409)
    assert other["reason"] == "pool_exists"
    assert api.send("POST", "/pools/a/rename", {"new_name": "b"})["detail"] == "changed"
    assert api.get("/pools/a", 404)["reason"] == "pool_not_found"
    assert api.get("/pools/b")["state"] == "open"
    assert api.send("POST", "/cohorts", {"name": "c"})["detail"] == "created"
    assert api.send("POST", "/cohorts/c/rename", {"new_name": "d"})["detail"] == "changed"
    assert api.send("DELETE", "/cohorts/d")["detail"] == "deleted"
    assert api.send("POST", "/pools/b/end", {"deadline": "5m"})["detail"] == "deleted"
    assert api.send("DELETE", "/pools/b", None, 404)["reason"] == "pool_not_found"


def test_a_maintenance_window_is_announced_and_deleted(api):
    body = {
        "name": "更新",
        "start": "2090-01-01T00:00+08:00",
        "duration": "4h",
        "all_nodes": True,
        "repeat": "weekly",
        "notice": "30m",
    }
    assert api.send("POST", "/windows", body)["detail"] == "created"
    assert api.send("POST", "/windows", body)["detail"] == "unchanged"
    other = {**body, "duration": "5h"}
    assert api.send("POST", "/windows", other, 409)["reason"] == "window_exists"
    (row,) = api.get("/windows")["items"]
    assert (row["start"], row["duration_s"]) == ("2090-01-01T00:00+08:00", 14_400.0)
    assert (row["notice_s"], row["repeat"], row["open"]) == (1800.0, "weekly", False)
    assert api.get("/windows/更新")["next_start"] == row["next_start"]
    assert api.send("DELETE", "/windows/更新")["detail"] == "deleted"
    assert api.send("DELETE", "/windows/更新", None, 404)["reason"] == "window_not_found"
    past = {**body, "start": "2020-01-01T00:00Z", "repeat": None}
    assert api.send("POST", "/windows", past, 409)["reason"] == "window_over"
    bad = {**body, "start": "2090-01-01"}
    assert "offset from UTC" in api.send("POST", "/windows", bad, 400)["error"]


def test_an_amount_is_reserved_for_an_owner(api):
    body = {
        "name": "course",
        "start": "2090-01-01T00:00Z",
        "duration": "4h",
        "resources": {"gpu": 1_000},
        "owners": ["ada"],
    }
    assert api.send("POST", "/windows", body)["detail"] == "created"
    (row,) = api.get("/windows")["items"]
    assert row["resources"] == {"gpu": 1_000.0}
    assert row["short"]["gpu"] > 0.0
    for wrong in ({"gpu": 1, "cpu": 1}, {"gpus": 1}, {"gpu": "1"}, {"gpu@h100": 1}, 8):
        answer = api.send("POST", "/windows", {**body, "resources": wrong}, 400)
        assert "resources" in answer["error"]
    unowned = {**body, "owners": []}
    assert "give pools, owners" in api.send("POST", "/windows", unowned, 400)["error"]


def test_a_pool_is_created_changed_and_drained(api):
    made = api.send("PUT", "/pools/训练", {"resources": {"cpu": 4}, "labels": {"team": "a"}})
    assert (made["detail"], made["pool"]["resources"]) == ("created", {"cpu": 4.0})
    assert api.send("PATCH", "/pools/训练", {"resources": {"cpu": 8}})["detail"] == "changed"
    assert api.get("/pools/训练")["free"] == {"cpu": 8.0}
    assert api.send("PATCH", "/pools/none", {"resources": {"cpu": 8}}, 404)["reason"] == (
        "pool_not_found"
    )
    assert api.send("PUT", "/pools/训练/drain", {"deadline": 5})["success"]
    (drain,) = api.get("/drains")["items"]
    assert drain["requested_by"].startswith("local@127.0.0.1")
    assert api.send("DELETE", "/pools/训练/drain")["success"]
    assert api.get("/drains")["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/pools/p", {"resources": {"cpu": -1}}),
        ("PUT", "/pools/p", {"resources": {"cqu": 1}}),
        ("PUT", "/pools/p", {"resources": 1}),
        ("PUT", "/pools/p", {"resource": {}}),
        ("PUT", "/pools/p", []),
        ("PUT", "/pools/p", {"pg_pool_config": {"warm": {"count": 1}}}),
        ("PUT", "/pools/%20", {}),
        ("PATCH", "/policy", {"no_such_field": 1}),
        ("PATCH", "/policy", {"preemption_aggressiveness": "env:HOME"}),
        ("PATCH", "/queue_policy", {"order": "fastest"}),
        ("PATCH", "/queue/t", {}),
        ("PATCH", "/queue/t", {"held": True, "to_front": True}),
        ("POST", "/evaluations", {}),
        ("POST", "/tasks/cancel", {"task_ids": [""]}),
        ("POST", "/tasks/t/cancel", {"unknown": 1}),
    ],
)
def test_a_malformed_change_is_refused_before_the_supervisor_is_asked(api, method, path, body):
    refused = api.send(method, path, body, 400)
    assert refused["reason"] == "invalid_request"
    assert refused["success"] is False
    assert api.gateway.asked == []


def test_policies_are_changed_and_show_who_did(api):
    changed = api.send("PATCH", "/policy", {"min_runtime": 3, "preemption_aggressiveness": "low"})
    assert changed["policy"]["min_runtime"] == 3.0
    last = api.get("/policy")["changes"][-1]
    assert last["client"].startswith("local@127.0.0.1")
    assert last["preemption_aggressiveness"] == "low"
    assert api.send("PATCH", "/queue_policy", {"order": "fifo"})["policy"]["order"] == "fifo"
    assert api.get("/queue_policy")["policy"]["order"] == "fifo"
    changed = api.send("PATCH", "/queue_policy", {"estimates": True})["policy"]
    assert (changed["order"], changed["estimates"]) == ("fifo", True)
    impossible = {"on_impossible": "cancel", "impossible_after_s": 60.0}
    assert impossible.items() <= api.send("PATCH", "/queue_policy", impossible)["policy"].items()


def test_queued_tasks_are_held_moved_and_cancelled(busy):
    assert busy.send("PATCH", "/queue/waits-1", {"held": True})["success"]
    assert busy.get("/queue?held=true")["items"][0]["task_id"] == "waits-1"
    assert busy.send("PATCH", "/queue/waits-1", {"held": False})["success"]
    assert busy.send("PATCH", "/queue/waits-1", {"to_front": True})["success"]
    # Never above those that run, so that nobody is evicted meanwhile.
    assert busy.send("PATCH", "/queue/waits-1", {"priority": "high"})["success"]
    assert busy.get("/tasks/waits-1")["priority_class"] == "high"
    assert busy.send("PATCH", "/queue/first", {"priority": 7})["success"]
    error = busy.send("PATCH", "/queue/first", {"priority": "hihg"}, 400)["error"]
    assert "did you mean 'high'?" in error
    busy.send("PATCH", "/policy", {"priority_classes": {"urgent": 8}})
    assert busy.send("PATCH", "/queue/first", {"priority": "urgent"})["success"]
    assert busy.get("/tasks/first")["priority_class"] == "urgent"
    error = busy.send("PATCH", "/queue/first", {"priority": "urgnet"}, 400)["error"]
    assert "did you mean 'urgent'?" in error
    assert busy.send("PATCH", "/queue/first", {"priority": 7})["success"]
    assert busy.get("/queue")["items"][0]["task_id"] == "waits-1"
    assert busy.send("PATCH", "/queue/first", {"held": True}, 409)["reason"] == "not_queued"
    assert busy.send("POST", "/tasks/waits-1/cancel")["success"]
    refused = busy.send("POST", "/tasks/cancel", {"task_ids": ["waits-2", "none"]}, 404)
    assert refused["refused"]["none"]["reason"] == "task_not_found"
    assert busy.get("/queue")["items"] == []


def test_a_repeated_change_with_the_same_key_is_carried_out_once(busy):
    for _ in range(2):
        answer = busy.client.post(
            "/api/v1/tasks/first/preempt", json={}, headers={"idempotency-key": "k1"}
        )
        assert (answer.status_code, answer.json()["agent_name"]) == (200, "first-agent")
    assert busy.send("POST", "/tasks/first/preempt", {}, 404)["reason"] == "task_not_found"


def test_a_key_is_for_one_change_of_one_token(busy):
    made = [
        busy.send("POST", "/tokens", {"name": name, "role": "operator"})["token"]
        for name in ("one", "other")
    ]
    key = {"idempotency-key": "1"}
    with busy.client_with(made[0]) as one, busy.client_with(made[1]) as other:
        for task_id in ("waits-1", "waits-2"):
            assert one.post(f"/api/v1/tasks/{task_id}/cancel", headers=key).status_code == 200
        assert busy.get("/queue")["items"] == []
        first = one.post("/api/v1/tasks/first/complete", json={}, headers=key)
        again = one.post("/api/v1/tasks/first/complete", json={}, headers=key)
        of_other = other.post("/api/v1/tasks/first/complete", json={}, headers=key)
    assert [answer.status_code for answer in (first, again, of_other)] == [200, 200, 404]


def test_numbers_that_no_row_can_have_select_none(busy):
    for number in ("9" * 19, "9" * 23, "-" + "9" * 300):
        assert busy.get(f"/tasks?position={number}")["items"] == []
    assert busy.get("/tasks?position=" + "9" * 400, 400)["reason"] == "invalid_request"


def test_a_key_with_another_body_is_a_conflict(busy):
    def drain(body, key="k"):
        return busy.client.put(
            "/api/v1/pools/p/drain", content=body, headers={"idempotency-key": key}
        )

    first = drain(b'{"deadline": 60}')
    assert first.status_code == 200, first.text
    for _ in range(2):
        other = drain(b'{"deadline": 61}')
        assert (other.status_code, other.json()["reason"]) == (409, "request_id_reused")
    assert drain(b'{ "deadline": 60.0 }').json() == first.json()
    assert drain(b'{"deadline": 61}', "l").status_code == 200


@pytest.mark.parametrize(
    "query", ["limit=1&limit=2", "cursor=a&cursor=b", "sort=task_id&sort=owner"]
)
def test_what_has_one_value_is_given_once(busy, query):
    name = query.partition("=")[0]
    refused = busy.get(f"/tasks?{query}", 400)
    assert refused["error"] == f"{name} is given 2 times; give it once"


@pytest.mark.parametrize("number", ["1_0", "\uff15", "\u0665"])
def test_numbers_of_filters_have_the_digits_0_to_9(busy, number):
    refused = busy.get(f"/tasks?priority={number}", 400)
    assert refused["error"] == f"priority is a number, which {number!r} is not"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/status?verbose=1"),
        ("GET", "/pools/p?limit=1"),
        ("DELETE", "/pools/p?dry_run=true"),
        ("POST", "/tasks/first/cancel?dry_run"),
        ("POST", "/jobs?dry_run=true"),
    ],
)
def test_parameters_of_a_call_that_has_none_are_not_ignored(busy, method, path):
    """A change of which somebody wanted to see what it would do is not carried out."""
    busy.gateway.asked.clear()
    refused = busy.client.request(method, f"/api/v1{path}", json={})
    name = path.partition("?")[2].partition("=")[0]
    assert refused.status_code == 400
    assert f"no parameters in its query, and {name!r} is given" in refused.json()["error"]
    assert busy.gateway.asked == []


def test_a_request_has_one_key(busy):
    headers = [("idempotency-key", "a"), ("idempotency-key", "b")]
    refused = busy.client.put("/api/v1/pools/p/drain", json={}, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"] == "the header Idempotency-Key is given more than once"


def test_a_key_is_remembered_by_the_next_supervisor_and_for_its_token_only(tmp_path):
    """The first answer was lost with the supervisor; somebody else has the same key by chance."""
    meshes = [InThread(tmp_path / "j.sqlite")]
    api = Api(meshes[0], tmp_path / "home")
    other = api.send("POST", "/tokens", {"name": "o", "role": "operator"})["token"]
    key, body = {"idempotency-key": "k"}, {"name": "p", "resources": {"cpu": 1}}
    first = api.client.post("/api/v1/pools", json=body, headers=key)
    meshes[0].close()
    meshes.append(InThread(tmp_path / "j.sqlite"))
    api.gateway.mesh = meshes[1]
    again = api.client.post("/api/v1/pools", json=body, headers=key)
    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    changed = api.client.post("/api/v1/pools", json={**body, "name": "q"}, headers=key)
    assert (changed.status_code, changed.json()["reason"]) == (409, "request_id_reused")
    with api.client_with(other) as client:
        of_other = client.post("/api/v1/pools", json=body, headers=key)
    assert (first.json()["detail"], of_other.json()["detail"]) == ("created", "unchanged")
    api.close()
    meshes[1].close()


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_the_answers_that_are_remembered_of_a_token_are_bounded_after_a_restart_too(
    tmp_path, monkeypatch, from_snapshot
):
    """Those of another token stay, and what is forgotten is carried out again."""
    monkeypatch.setattr(request_updates, "KEPT_OF_TOKEN", 3)
    settings = {"journal": JournalSettings(snapshot_facts=1 if from_snapshot else 1_000)}
    meshes = [InThread(tmp_path / "j.sqlite", **settings)]
    api = Api(meshes[0], tmp_path / "home")
    secret = api.send("POST", "/tokens", {"name": "storm", "role": "operator"})["token"]

    def create(client, name):
        answer = client.post(
            "/api/v1/pools", json={"name": name}, headers={"idempotency-key": name}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["detail"]

    with api.client_with(secret) as storm:
        assert create(api.client, "other") == "created"
        for number in range(5):
            assert create(storm, f"p{number}") == "created"
        meshes[0].close()
        meshes.append(InThread(tmp_path / "j.sqlite", **settings))
        api.gateway.mesh = meshes[1]
        kept = {name: create(storm, name) for name in ("p2", "p3", "p4", "p0", "p1")}
        assert create(api.client, "other") == "created"
    assert kept == dict.fromkeys(("p2", "p3", "p4"), "created") | dict.fromkeys(
        ("p0", "p1"), "unchanged"
    )
    api.close()
    meshes[1].close()


def test_every_change_is_repeated_by_its_key(busy):
    """Whatever a change is, the supervisor gets an id that is the same for a repetition only."""
    ids = []
    for name in ("x", "x", "y"):
        busy.gateway.asked.clear()
        busy.client.request(
            "DELETE", "/api/v1/agents/none", json={}, headers={"idempotency-key": name}
        )
        ids.append(busy.gateway.asked[-1].request_id)
    assert ids[0] == ids[1] != ids[2]


def test_leases_are_listed_renewed_and_released(busy, mesh):
    for task_id in ("first", "second", "waits-1", "waits-2"):
        busy.send("POST", f"/tasks/{task_id}/cancel")
    lease(mesh, "leased")
    (row,) = busy.get("/tasks?kind=lease")["items"]
    assert (row["task_id"], row["phase"]) == ("leased", "running")
    assert busy.get("/tasks/leased")["kind"] == "lease"
    assert busy.send("POST", "/leases/leased/renew")["success"]
    assert busy.send("POST", "/leases/leased/release")["success"]
    assert busy.get("/tasks/leased")["state"] == "completed"
    assert busy.get("/tasks/leased")["kind"] == "lease", "also when it has ended"
    assert busy.send("POST", "/leases/leased/renew", status=409)["reason"] == "lease_ended"
    assert busy.send("POST", "/leases/leased/release")["detail"] == "already_ended"
    assert busy.send("POST", "/leases/none/renew", status=404)["reason"] == "task_not_found"


def test_a_submitter_may_release_its_own_leases_only(busy, mesh):
    for task_id in ("first", "second", "waits-1", "waits-2"):
        busy.send("POST", f"/tasks/{task_id}/cancel")
    lease(mesh, "leased", owner="bob")
    role = {"role": "submitter", "pools": ["p"]}
    other = busy.send("POST", "/tokens", {"name": "eve", "owner": "eve", **role})["token"]
    own = busy.send("POST", "/tokens", {"name": "bob", "owner": "bob", **role})["token"]
    with busy.client_with(other) as eve, busy.client_with(own) as bob:
        assert eve.post("/api/v1/leases/leased/release").status_code == 403
        assert bob.post("/api/v1/leases/leased/release").status_code == 200


def test_agents_and_nodes_are_changed(busy):
    node = busy.get("/nodes")["items"][0]["node_id"]
    assert busy.send("PUT", f"/nodes/{node}/cordon")["success"]
    assert busy.get(f"/nodes/{node}")["cordoned"]
    assert busy.send("DELETE", f"/nodes/{node}/cordon")["success"]
    assert busy.send("DELETE", "/agents/first-agent")["success"]
    assert busy.get("/agents/first-agent", 404)["reason"] == "agent_not_found"
    assert busy.send("POST", "/agents/check", {"timeout": 5})["checked"] >= 0
    assert busy.send("POST", "/orphans/end", {})["ended"] == []


def test_an_evaluation_changes_nothing(busy):
    answer = busy.send("POST", "/evaluations", {"priority": 9, "pool_name": "p"})
    assert answer["success"]
    assert {row["task_id"] for row in answer["candidates"]} == {"first", "second"}
    assert busy.get("/tasks?phase=running")["total"] == 2


def test_the_document_has_every_call_and_only_types_that_it_defines(api):
    served = api.get("/openapi.json")
    assert served == msgspec.to_builtins(document("/api/v1"))
    operations = [op for path in served["paths"].values() for op in path.values()]
    singles = sum(listing.missing is not None for listing in LISTINGS)
    tables = (LISTINGS, SINGLES, TASK_READS, QUESTIONS, CHANGES)
    streams = 1
    assert len(operations) == singles + sum(map(len, tables)) + streams
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    text = msgspec.json.encode(served).decode()
    for name in served["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in text


def test_metrics_are_scraped_on_this_machine_without_a_token(busy):
    with busy.client_with(None) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    counted = 'schedulemesh_preemption_count{pool="p",reason="same_pool_preemption"} 1'
    assert counted in answer.text.replace(" 1.0\n", " 1\n")


def test_bodies_refuse_what_they_do_not_know():
    for change in CHANGES:
        if isinstance(change.body, type) and issubclass(change.body, bodies.Body):
            assert change.body.__struct_config__.forbid_unknown_fields


@pytest.mark.parametrize("path", ["/pools/p%2Fdrain", "/pools/p%2fdrain"])
def test_a_slash_in_a_name_is_encoded_and_never_taken_for_another_call(api, path):
    api.send("PUT", "/pools/p")
    assert api.send("PUT", path)["pool"]["name"] == "p/drain"
    assert api.get(path)["name"] == "p/drain"
    assert api.get("/drains")["items"] == []
    assert api.send("PUT", f"{path}/drain")["success"]
    assert [row["pool_name"] for row in api.get("/drains")["items"]] == ["p/drain"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/pools/p/", 404), ("/pools/p/drain/", 404), ("/pools/a/b", 404), ("/pools/a%FFb", 400)],
)
def test_a_path_that_is_no_call_changes_nothing(api, path, status):
    api.send("PUT", path, status=status)
    assert api.get("/pools")["total"] == 0


@pytest.mark.parametrize(
    ("path", "field"), [("/policy", "min_runtime"), ("/queue_policy", "ageing_per_hour")]
)
def test_fields_of_policies_are_known_and_null_is_their_default(api, path, field):
    refused = api.send("PATCH", path, {field[:-1]: None}, 400)
    assert f"did you mean '{field}'?" in refused["error"]
    assert api.gateway.asked == []
    default = api.get(path)["policy"][field]
    assert api.send("PATCH", path, {field: 7})["policy"][field] == 7
    assert api.send("PATCH", path, {field: None})["policy"][field] == default


def in_chinese(api, method, path, body=None):
    """The status and the JSON of an answer to who prefers Chinese."""
    headers = {"accept-language": "de, zh-CN;q=0.9, en;q=0.8"}
    answer = api.client.request(method, f"/api/v1{path}", json=body, headers=headers)
    return answer.status_code, answer.json()


def test_sentences_are_in_the_language_that_a_client_accepts(busy):
    status, answer = in_chinese(busy, "GET", "/tasks/nope")
    assert (status, answer["reason"]) == (404, "task_not_found")
    assert answer["error"].startswith("没有任务 'nope'")
    _, answer = in_chinese(busy, "POST", "/tasks/cancel", {"task_ids": ["nope", "neither"]})
    assert answer["error"].startswith("有 2 个任务没有取消：没有任务 'nope'")
    assert answer["refused"]["neither"]["error"].startswith("没有任务 'neither'")
    assert busy.send("POST", "/tasks/cancel", {"task_ids": ["nope"]}, 404)["error"].startswith(
        "1 of the tasks were not cancelled: there is no task 'nope'"
    )


def test_warnings_about_a_change_are_in_that_language_and_in_the_words_of_the_api(busy):
    _, answer = in_chinese(busy, "PATCH", "/policy", {"protected_pools": ["nope"]})
    assert answer["warnings"] == ["protected_pools 里的 'nope' 目前不存在"]
    (warning,) = answer["sentences"]["warnings"]
    assert warning["code"] == "protects_unknown_pools"
    api = busy.send("PATCH", "/policy", {"protected_pools": ["neither"]})
    assert api["warnings"] == ["protected_pools names 'neither', and there is no such pool as yet"]
    node_id = busy.get("/nodes")["items"][0]["node_id"]
    busy.send("PUT", f"/nodes/{node_id}/cordon")
    busy.send("PUT", f"/nodes/{node_id}/drain")
    _, answer = in_chinese(busy, "DELETE", f"/nodes/{node_id}/drain")
    assert f"用 DELETE /api/v1/nodes/{node_id}/cordon 解除封锁" in answer["warnings"][0]
