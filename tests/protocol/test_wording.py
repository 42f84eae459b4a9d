"""Sentences of the scheduler name commands on the command line, and requests over HTTP."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.protocol.wording import in_commands, in_requests
from schedulemesh.simple import SimpleScheduler
from tests.sources import PACKAGE, nodes

#: How a text is written.
TEXTS = (ast.Constant, ast.JoinedStr)
#: Whose sentences commands and HTTP answers show.
SPEAKERS = ("domain", "engine", "runtime", "core/client/job_adoption.py")
#: What a Python program writes: a public call by its name, a call with arguments, an argument.
NAMES = sorted(
    {n for kind in (RayScheduler, SimpleScheduler) for n in dir(kind) if re.match(r"[a-z]+_", n)}
)
PYTHON = re.compile(
    rf"(?<!the Python call )(?<!the Python call `)(?<!Python 调用 )(?<!/)\b(?:{'|'.join(NAMES)})\b"
    r"|(?<!the Python call )(?<!Python 调用 )\b(?:jobs|lease|wait|result|shutdown|stats)\([^)]*\)"
    r"|(?<!from Python with )\b[a-z_]+=(?:True|False|None)\b"
)
#: Names of calls that are names of fields of the policies and settings, or of metrics, too.
ALSO_FIELDS = {"register_state_handlers"}


def texts(path):
    """The sentences in a module, with a name in the place of each value."""
    docstrings = {id(n.value) for n in nodes(path) if isinstance(n, ast.Expr)}
    parts = {id(v) for n in nodes(path) if isinstance(n, ast.JoinedStr) for v in n.values}
    logged = {
        id(argument)
        for n in nodes(path)
        if isinstance(n, ast.Call) and any(isinstance(a, TEXTS) for a in n.args)
        if "logger" in ast.unparse(n.func)
        for argument in n.args
    }
    left_out = docstrings | parts | logged
    for node in nodes(path):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(value.value)
                if isinstance(value, ast.Constant)
                else "'thing'"
                if value.conversion == ord("r")
                else "thing"
                for value in node.values
            )


@cache
def sentences():
    places = [PACKAGE / speaker for speaker in SPEAKERS]
    paths = [p for place in places for p in ([place] if place.is_file() else place.rglob("*.py"))]
    return [(path.relative_to(PACKAGE).as_posix(), text) for path in paths for text in texts(path)]


@pytest.mark.parametrize("words", [in_commands, in_requests])
def test_no_sentence_of_the_scheduler_has_words_of_python(words):
    everything = sentences()
    assert sum(bool(PYTHON.search(text)) for _, text in everything) > 20
    left = [
        (path, words(text))
        for path, text in everything
        if (python := PYTHON.search(words(text))) and python[0] not in ALSO_FIELDS
    ]
    assert not left, "\n".join(f"{path}: {text}" for path, text in left)


@pytest.mark.parametrize(
    ("sentence", "command", "request_"),
    [
        (
            "release_task('a b') lets it start",
            "`schedulemesh release 'a b'` lets it start",
            'PATCH /api/v1/queue/a%20b with {"held": false} lets it start',
        ),
        (
            "cordon_node('n', cordoned=False) opens it again",
            "`schedulemesh uncordon n` opens it again",
            "DELETE /api/v1/nodes/n/cordon opens it again",
        ),
        (
            "there is no pool 'p'; pools are: q. Create it with create_pool or ensure_pool",
            "there is no pool 'p'; pools are: q. Create it with `schedulemesh pools create POOL`",
            "there is no pool 'p'; pools are: q. Create it with PUT /api/v1/pools/POOL",
        ),
        (
            "没有资源池 'p'；可用 create_pool 或 ensure_pool 创建",
            "没有资源池 'p'；可用 `schedulemesh pools create POOL` 创建",
            "没有资源池 'p'；可用 PUT /api/v1/pools/POOL 创建",
        ),
        (
            "result('x') 会抛出它的异常",
            "Python 调用 result('x') 会抛出它的异常",
            "Python 调用 result('x') 会抛出它的异常",
        ),
        (
            "请先给其中一个设置 parent=None",
            "请先给其中一个在 apply 的文件里设置 `parent: null`",
            '请先给其中一个设置 "parent": null',
        ),
        (
            "or submit it with queue=True, so that it starts",
            "or submit it without --now, so that it starts",
            'or submit it with "queue": true, so that it starts',
        ),
        (
            "start one with RayScheduler('m', detached=True), or on the head node with `x`",
            "start one on the head node with `x`",
            "start one on the head node with `x`",
        ),
        (
            "cohorts are: none yet. Create it with ensure_cohort",
            "cohorts are: none yet. Create it with `schedulemesh cohorts create COHORT`",
            "cohorts are: none yet. Create it with PUT /api/v1/cohorts/COHORT",
        ),
        (
            "wait(['x']) returns when it has ended",
            "`schedulemesh wait x` returns when it has ended",
            "GET /api/v1/tasks/x says whether it has ended",
        ),
    ],
)
def test_a_call_becomes_a_command_or_a_request(sentence, command, request_):
    assert in_commands(sentence) == command
    assert in_requests(sentence) == request_


def test_names_that_people_have_chosen_stay():
    sentence = "there is no task 'cancel_task', nor /jobs/submit_job.py, nor my-restore_task"
    assert in_commands(sentence) == in_requests(sentence) == sentence


def test_ids_of_nodes_are_short_in_commands():
    node_id = "9f86d081" + "a" * 48
    assert in_commands(f"node {node_id} lacks gpu 4") == "node 9f86d081 lacks gpu 4"
    other = "9f86d081" + "b" * 48
    assert in_commands(f"{node_id} or {other}") == "9f86d081a or 9f86d081b"
    assert node_id in in_requests(f"node {node_id} lacks gpu 4")
