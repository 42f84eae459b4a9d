"""Sentences of the scheduler in the language and the words of the surface that shows them.

The scheduler, which Python programs call, names Python calls and their arguments. The command line shows
the commands for them, and the HTTP API its requests.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from schedulemesh.domain.language import Language
from schedulemesh.domain.node_names import short_ids
from schedulemesh.domain.sentences import Sentence, translation


class _Words(NamedTuple):
    """What stands for a Python call, with the name in capitals for what it is about; empty: nothing does, so
    that the call is named as one of Python.
    """

    command: str
    request: str
    #: Whether the name is also an ordinary word, and is a call only with its arguments.
    with_arguments: bool = False


_CALLS = {
    "release_task": _Words("release TASK", 'PATCH /queue/TASK with {"held": false}'),
    "move_to_front": _Words("front TASK", 'PATCH /queue/TASK with {"to_front": true}'),
    "cancel_task": _Words("cancel TASK", "POST /tasks/TASK/cancel"),
    "preempt_task": _Words("preempt TASK", "POST /tasks/TASK/preempt"),
    "restore_task": _Words("restore TASK", ""),
    "get_saved_state": _Words("states -f task=TASK", ""),
    "save_task_state": _Words("save TASK", "POST /tasks/TASK/save"),
    "execute_preemption": _Words("", ""),
    "list_preemptions": _Words("preemptions", "GET /preemptions"),
    "list_tasks": _Words("tasks", "GET /tasks"),
    "cordon_node": _Words("uncordon NODE", "DELETE /nodes/NODE/cordon"),
    "undrain_node": _Words("undrain NODE", "DELETE /nodes/NODE/drain"),
    "undrain_pool": _Words("undrain --pool POOL", "DELETE /pools/POOL/drain"),
    "create_window": _Words("windows create WINDOW", "POST /windows"),
    "delete_window": _Words("windows delete WINDOW", "DELETE /windows/WINDOW"),
    "list_windows": _Words("windows", "GET /windows"),
    "create_pool": _Words("pools create POOL", "POST /pools"),
    "delete_pool": _Words("pools delete POOL", "DELETE /pools/POOL"),
    "rename_pool": _Words("pools rename POOL", "POST /pools/POOL/rename"),
    "ensure_pool": _Words("pools set POOL", "PUT /pools/POOL"),
    "create_cohort": _Words("cohorts create COHORT", "POST /cohorts"),
    "ensure_cohort": _Words("apply", "PUT /cohorts/COHORT"),
    "delete_cohort": _Words("cohorts delete COHORT", "DELETE /cohorts/COHORT"),
    "rename_cohort": _Words("cohorts rename COHORT", "POST /cohorts/COHORT/rename"),
    "ensure_agent_health": _Words("health", "POST /agents/check"),
    "delete_agent": _Words("", "DELETE /agents/AGENT"),
    "create_agent": _Words("", ""),
    "submit_with_pg_preemption": _Words("", ""),
    "list_orphans": _Words("orphans", "GET /orphans"),
    "end_orphans": _Words("orphans --end", "POST /orphans/end"),
    "external_usage": _Words("external", "GET /external_usage"),
    "set_time_limit": _Words("limit TASK DURATION", "PUT /tasks/TASK/time_limit"),
    "submit_job": _Words("submit", "POST /jobs"),
    "adopt_job": _Words("adopt", ""),
    "job_logs": _Words("logs TASK", "GET /jobs/TASK/log"),
    "jobs": _Words("jobs", "GET /jobs", with_arguments=True),
    "lease": _Words("", "POST /leases", with_arguments=True),
    "wait": _Words("wait TASK", "GET /tasks/TASK", with_arguments=True),
    "result": _Words("", "", with_arguments=True),
    "shutdown": _Words("stop", "", with_arguments=True),
}
#: Phrases, and what stands for each in commands and in requests; the first that matches counts.
_PHRASES = (
    (
        r"start one with RayScheduler\(.*?\), or on the head node with",
        "start one on the head node with",
        "start one on the head node with",
    ),
    (r"with queue=True", "without --now", 'with "queue": true'),
    (r"with `queue=True`", "without `--now`", 'with `"queue": true`'),
    (r"create_pool (?:or|或) ensure_pool", "create_pool", "ensure_pool"),
    (
        r"Create it with ensure_cohort",
        "Create it with create_cohort",
        "Create it with ensure_cohort",
    ),
    (r"Delete it with drain=True", "Delete it with --drain", "End it with POST /pools/POOL/end"),
    (r"with `drain=True`", "with `--drain`", "by `POST /pools/POOL/end`"),
    (r"\b(call|use|with) (undrain_node|ensure_pool)\b", r"\1 \2", r"\1 \2"),
    (r"on_preempted='requeue'", "--on-preempted requeue", '"on_preempted": "requeue"'),
    (r"on_time_limit='requeue'", "--on-time-limit requeue", '"on_time_limit": "requeue"'),
    (r"\b(its|another) max_run_s\b", r"\1 --max-run", r"\1 max_run_s"),
    (r"^max_run_s is\b", "--max-run is", "max_run_s is"),
    (r"\b(its|another) idle_s\b", r"\1 --idle", r"\1 idle_s"),
    (
        r"update_preemption_policy\(allow_exec=True\)",
        "`schedulemesh policy set allow_exec=true`",
        'PATCH /api/v1/policy with {"allow_exec": true}',
    ),
    (r"with detached=True", "with --detached", "from Python with detached=True"),
    (r"加 drain=True", "加 --drain", "用 POST /pools/POOL/end "),
    (r"加 queue=True", "不加 --now", '加 "queue": true'),
    (r"加 detached=True", "加 --detached", "在 Python 中设置 detached"),
    (r"(换一个|它已运行到|达到) max_run_s\b", r"\1 --max-run", r"\1 max_run_s"),
    (r"(换一个|超过了) idle_s\b", r"\1 --idle", r"\1 idle_s"),
    (r"^max_run_s 为", "--max-run 为", "max_run_s 为"),
    (r"设置 parent=None", "在 apply 的文件里设置 `parent: null`", '设置 "parent": null'),
    (r"\bparent=None", "`parent: null` in the file for apply", '"parent": null'),
    (r"\bmax_retries\b", "--retries", "max_retries"),
    (r"an estimated_duration\b", "a --time", "an estimated_duration"),
    (r"\bestimated_duration\b", "--time", "estimated_duration"),
    (r"(wait\(\[?'.*?'\]?\)) returns when", r"\1 returns when", r"\1 says whether"),
    (
        r"(create|Make) (one|a new one) with RayScheduler\(.*?\)",
        r"\1 \2 with `schedulemesh start`",
        "",
    ),
)
#: A call; not one within quotes, which is a name that somebody has chosen, nor in a path.
_CALL = re.compile(
    r"(?<![\w'\"/.-])`?("
    + "|".join(_CALLS)
    + r")(\((?:[^()'\"]|'[^']*'|\"[^\"]*\")*\))?`?(?![\w'\"-])"
)
_TEXT = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_PLACE = re.compile(r"\b[A-Z]{4,}\b")
_CHINESE = re.compile("[\u4e00-\u9fff]")
_API = "/api/v1"
#: An id of a node of Ray's, and the least digits of it that are shown, which name it too.
_NODE_ID, _DIGITS = re.compile(r"\b[0-9a-f]{56}\b"), 8
#: The fields of answers that are a sentence, or a list of sentences.
_SENTENCES = frozenset(("error", "hint", "no_estimate"))
_LISTS = frozenset(("warnings",))


def translated(data: Any, language: Language) -> Any:
    """An answer whose sentences are in this language, as far as their codes are known here."""
    if isinstance(data, Mapping):
        entries = {key: translated(value, language) for key, value in data.items()}
        sentences = data.get("sentences")
        if isinstance(sentences, Mapping):
            entries |= {"sentences": sentences, **dict(_translations(sentences, language))}
        return entries
    return [translated(one, language) for one in data] if isinstance(data, (list, tuple)) else data


def _translations(
    sentences: Mapping[str, Any], language: Language
) -> Iterator[tuple[str, str | list[str]]]:
    """What fields say in a language; nothing of a newer scheduler's sentence that has no text here."""
    for field, encoded in sentences.items():
        with suppress(KeyError):
            if isinstance(encoded, (list, tuple)):
                yield field, [_translation(one, language) for one in encoded]
            else:
                yield field, _translation(encoded, language)


def _translation(encoded: Any, language: Language) -> str:
    """A sentence as plain data in a language; a text of others as it is. Raises as ``translation``."""
    if isinstance(encoded, str):
        return encoded
    return translation(msgspec.convert(encoded, Sentence), language)


def in_commands(sentence: str) -> str:
    """A sentence of the scheduler in the words of the command line."""
    unique = short_ids(set(_NODE_ID.findall(sentence)))
    sentence = _NODE_ID.sub(lambda node: node[0][: max(_DIGITS, len(unique[node[0]]))], sentence)
    for pattern, command, _ in _PHRASES:
        sentence = re.sub(pattern, command, sentence)
    return _CALL.sub(_as_command, sentence)


def in_requests(sentence: str) -> str:
    """A sentence of the scheduler in the words of the HTTP API."""
    for pattern, _, request in _PHRASES:
        sentence = re.sub(pattern, request, sentence) if request else sentence
    return _CALL.sub(_as_request, sentence)


def reworded(data: Any, words: Callable[[str], str]) -> Any:
    """An answer whose sentences are in other words."""
    if isinstance(data, Mapping):
        return {key: _reworded(key, value, words) for key, value in data.items()}
    return [reworded(one, words) for one in data] if isinstance(data, (list, tuple)) else data


def _reworded(field: str, value: Any, words: Callable[[str], str]) -> Any:
    """The value of a field of an answer whose sentences are in other words."""
    if field in _SENTENCES and isinstance(value, str):
        return words(value)
    if field in _LISTS and isinstance(value, (list, tuple)):
        return [words(one) if isinstance(one, str) else reworded(one, words) for one in value]
    return reworded(value, words)


def _as_command(call: re.Match[str]) -> str:
    words = _CALLS[call[1]]
    if words.with_arguments and not call[2]:
        return call[0]
    if not words.command:
        return _python_call(call)
    return f"`schedulemesh {_filled(words.command, call[2], shlex.quote)}`"


def _as_request(call: re.Match[str]) -> str:
    words = _CALLS[call[1]]
    if words.with_arguments and not call[2]:
        return call[0]
    if not words.request:
        return _python_call(call)
    method, _, path = words.request.partition(" ")
    return f"{method} {_API}{_filled(path, call[2], lambda name: quote(name, safe=''))}"


def _python_call(call: re.Match[str]) -> str:
    """The call itself, in the language of its sentence: nothing stands for it outside of Python."""
    return (
        f"Python 调用 {call[0]}" if _CHINESE.search(call.string) else f"the Python call {call[0]}"
    )


def _filled(words: str, arguments: str | None, quoted: Callable[[str], str]) -> str:
    """The words with the first text of a call's arguments in the place of the name in capitals."""
    named = _TEXT.search(arguments or "")
    if named is None:
        return words
    return _PLACE.sub(lambda _: quoted(named[1] or named[2]), words, count=1)
