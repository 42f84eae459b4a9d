"""What notebooks show of answers and scheduler objects, and what ``dashboard`` prints."""

from __future__ import annotations

import json
import pickle

import pytest
from rich.cells import cell_len

from schedulemesh.client.notebook import CallAnswer, table_of
from schedulemesh.core.agent_actor import AgentActor
from schedulemesh.core.client.connection import Connection
from schedulemesh.protocol.answers import Hello
from tests.core.test_request_service import client
from tests.runtime.composition import InThread


class Worker(AgentActor):
    """A user's class."""


@pytest.fixture
def mesh(tmp_path):
    """A client of a supervisor on a fake backend."""
    service = InThread(tmp_path / "j.sqlite")
    yield client(service)
    service.close()


def test_an_answer_is_a_dict_and_a_table(mesh):
    answer = mesh.ensure_pool("研究<b>", resources={"cpu": 2}, labels={"team": "llm"})
    assert isinstance(answer, CallAnswer)
    assert answer == {**answer}
    assert json.loads(json.dumps(answer)) == pickle.loads(pickle.dumps(answer)) == answer
    assert repr(answer) == repr({**answer})
    html = answer._repr_html_()
    assert "研究&lt;b&gt;" in html
    assert "<b>" not in html
    assert html.count("<table>") == html.count("</table>") == 4


def test_a_list_of_answers_has_a_row_for_each_and_an_end():
    html = table_of(
        {"tasks": [{"id": n, "error": None} for n in range(60)], "none": [], "n": [1, 2]}
    )
    assert html.count("<tr>") == 3 + 1 + 50
    assert "<td>49</td>" in html
    assert " and 10 more" in html
    assert "1, 2" in html


def test_a_scheduler_object_is_shown_without_asking_the_supervisor(mesh):
    mesh._connection = connection = Connection(None, mesh._connection.settings, _hello(mesh))
    assert repr(mesh).startswith("<RayScheduler name='mesh', namespace='space'")
    assert "<td style='text-align:left'>connected</td>" in mesh._repr_html_()
    connection.leave()
    assert repr(mesh).endswith(", detached from it>")
    assert "<td style='text-align:left'>detached from it</td>" in mesh._repr_html_()


def _hello(mesh):
    settings = mesh._connection.settings
    return Hello(protocol=1, python="3", ray="2", detached=True, job_id="j", settings=settings)


@pytest.mark.parametrize("width", [80, 200])
def test_the_dashboard_fits_the_terminal(mesh, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    mesh.ensure_pool("研究-一个名字很长的资源池-用于大模型训练", resources={"cpu": 2, "gpu": 8})
    for name, priority in (("低", 1.0), ("high", 9.0)):
        answer = mesh.submit_task_with_preemption(
            name, "研究-一个名字很长的资源池-用于大模型训练", Worker, {"cpu": 2}, priority
        )
        assert answer["success"]
    mesh.dashboard()
    printed = capsys.readouterr().out
    assert max(map(cell_len, printed.splitlines())) <= width
    for words in ("1 running", "last preemptions", "high", "低"):
        assert words in printed
