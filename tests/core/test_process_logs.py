"""Where Ray keeps what agents write, and how it is read when their processes are gone."""

from __future__ import annotations

import os

import msgspec
import pytest

from schedulemesh.api.logs import ReadTaskLog, TaskKey
from schedulemesh.core.agent.process_logs import link_log_files, read_process_log
from tests.core.agent_inits import agent_init

KEY = TaskKey(root="", namespace="space", scheduler="mesh", task_id="t", agent_name="a")
INIT = agent_init(log_task="t")


@pytest.fixture
def session(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
def start(session):
    """Starts a process with these fields of its init message, after it has written some bytes for Ray."""
    processes = []

    def started(before=b"", **fields):
        path = session / "logs" / f"worker-{len(processes)}.out"
        path.write_bytes(before)
        processes.append(path)
        link_log_files(msgspec.structs.replace(INIT, **fields), {"stdout": path})
        return path

    return started


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def read(session, key=KEY, **fields):
    request = ReadTaskLog(task_id="t", **{"stream": "stdout", **fields})
    return read_process_log(session, key, request)


def test_a_log_begins_where_the_process_began_to_serve_the_agent(session, start):
    append(start(before=b"of another agent\n"), b"hello\n")
    assert read(session).data == b"hello\n"
    assert (read(session).begin, read(session).end) == (0, 6)


def test_parts_are_read_from_a_position_and_from_the_end(session, start):
    append(start(), b"0123456789")
    assert read(session, begin=4, limit=3).data == b"456"
    assert read(session, begin=-2).data == b"89"
    assert read(session, begin=-200).data == b"0123456789"
    assert (read(session, begin=50).data, read(session, begin=50).end) == (b"", 10)


def test_a_restarted_process_goes_on_with_the_log_of_its_attempt(session, start):
    append(start(), b"first ")
    append(start(), b"second")
    assert read(session).data == b"first second"
    assert read(session, begin=4, limit=4).data == b"t se"
    assert read(session, begin=8).data == b"cond"
    assert read(session, begin=-7).data == b" second"


def test_attempts_have_logs_of_their_own(session, start):
    append(start(incarnation=1), b"one")
    append(start(incarnation=2, attempt=2), b"two")
    assert read(session).data == b"two"
    assert read(session, attempt=1).data == b"one"
    assert read(session, attempt=3) is None
    assert read(session, stream="stderr") is None


def test_an_earlier_task_of_the_same_names_has_left_nothing_to_a_later_one(session, start):
    for incarnation, attempt in ((1, 1), (2, 2), (3, 3)):
        append(start(incarnation=incarnation, attempt=attempt), b"earlier")
    append(start(incarnation=4), b"later")
    assert read(session).data == b"later"
    assert read(session, attempt=1).data == b"later"
    assert read(session, attempt=2) is None


def test_the_logs_of_others_are_not_read(session, start):
    append(start(), b"secret")
    for field in ("namespace", "scheduler", "task_id", "agent_name"):
        assert read(session, msgspec.structs.replace(KEY, **{field: "other"})) is None


def test_only_files_in_the_folder_of_logs_are_read(session, start, tmp_path):
    start()
    (link,) = (session / "schedulemesh_agents").rglob("*.stdout.*")
    (tmp_path / "token").write_text("secret")
    link.unlink()
    link.symlink_to(tmp_path / "token")
    assert read(session) is None


def test_a_file_that_ray_has_removed_is_told_from_an_empty_one(session, start):
    first, second = start(), start()
    append(second, b"second")
    assert not read(session).removed
    first.unlink()
    assert (read(session).data, read(session).removed) == (b"second", False)
    second.unlink()
    assert (read(session).data, read(session).removed) == (b"", True)


def test_an_agent_runs_where_no_link_can_be_made(session):
    link_log_files(INIT, {"stdout": session / "logs" / "was never written"})
    assert read(session) is None


def test_a_pipe_that_another_user_put_in_the_place_of_a_log_is_not_waited_for(session, start):
    path = start()
    path.unlink()
    os.mkfifo(path)
    assert read(session) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_links_are_not_made_where_another_user_could_change_them(session, start):
    (session / "schedulemesh_agents").mkdir()
    os.chown(session / "schedulemesh_agents", 12345, 12345)
    append(start(), b"hello")
    assert list((session / "schedulemesh_agents").iterdir()) == []
    assert read(session) is None
