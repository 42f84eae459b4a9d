"""How the fields of a task are read from a call's arguments."""

from __future__ import annotations

import getpass
import os

import pytest

from schedulemesh.client.origin import user_name
from schedulemesh.core.client.task_request import described_task
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of

#: Read by getpass before it asks the system.
VARIABLES = ("LOGNAME", "USER", "LNAME", "USERNAME")


@pytest.fixture
def environment(monkeypatch):
    """Without a name of the user."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def described(**given):
    return described_task({"task_id": "t", "pool_name": "p", **given})[0]


def test_the_owner_is_the_one_that_is_named():
    assert described(owner="search-team").owner == "search-team"


def test_the_default_owner_is_the_user_of_this_process(environment):
    assert described().owner == getpass.getuser()
    environment.setenv("LOGNAME", "grace")
    assert described().owner == described(owner=None).owner == "grace"


def test_a_user_without_an_entry_in_the_system_is_known_by_number(environment):
    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    environment.setattr("pwd.getpwuid", unknown)
    assert user_name() == described().owner == f"uid:{os.getuid()}"


@pytest.mark.parametrize("hostile", ["a\nb", "x" * 254, "  ", "\x1b[2J"])
def test_a_name_of_the_system_that_is_no_name_is_not_used(environment, hostile):
    environment.setenv("LOGNAME", hostile)
    assert user_name() == f"uid:{os.getuid()}"


@pytest.mark.parametrize("hostile", ["", " ", "a\nb", "x" * 254, b"grace", 7, True, ["grace"]])
def test_a_hostile_owner_is_refused_by_name(hostile):
    with pytest.raises(InvalidRequestError, match=r"^owner must be a text of 1 to 253"):
        described(owner=hostile)


def test_none_takes_the_default_of_every_field_but_the_id():
    task, blobs = described_task({"task_id": "t", "priority": None, "labels": None})
    assert (task.priority, task.labels, task.pool_name, blobs) == (5.0, {}, "", {})
    with pytest.raises(InvalidRequestError, match="task_id"):
        described(task_id=None)


def test_a_payload_is_stored_under_its_key():
    task, blobs = described_task({"task_id": "t", "payload": [1, 2]})
    ((key, data),) = blobs.items()
    assert task.payload_key == key == key_of(data)
