"""The table of calls in docs/http_api.md is that of the server. REWRITE_DOCS=1 writes it anew."""

from __future__ import annotations

import os
import re

from schedulemesh.api.history import QueryEvents
from schedulemesh.domain.tokens import Role
from schedulemesh.server.app import API
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.history import QUESTIONS, STREAM_PATH, STREAM_SUMMARY
from schedulemesh.server.openapi import document
from schedulemesh.server.reads import LISTINGS, SINGLES
from schedulemesh.server.task_reads import TASK_READS
from tests.docs.documents import ROOT

PAGE = ROOT / "docs" / "http_api.md"
_TABLE = re.compile(r"(?<=<!-- calls -->\n).*(?=<!-- end of calls -->)", re.DOTALL)


def calls() -> list[tuple[str, str, str, Role]]:
    """Method, path, summary and role of every call below the prefix."""
    found = [("GET", one.path, one.summary, type(one.request).least_role) for one in LISTINGS]
    for one in LISTINGS:
        if one.missing is not None:
            summary = f"Read one row of `GET {API}{one.path}`"
            role = type(one.request).least_role
            found.append(("GET", f"{one.path}/{{{one.key[0]}}}", summary, role))
    found += [("GET", one.path, one.summary, Role.VIEWER) for one in SINGLES]
    found += [("GET", one.path, one.summary, one.asks.least_role) for one in TASK_READS]
    found += [("GET", one.path, one.summary, one.asks.least_role) for one in QUESTIONS]
    found.append(("GET", STREAM_PATH, STREAM_SUMMARY, QueryEvents.least_role))
    found += [(one.method, one.path, one.summary, one.asks.least_role) for one in CHANGES]
    packed = "Any request of the Python client in its packed form, for clients of the same version"
    return [*found, ("POST", "/requests", packed, Role.VIEWER)]


def table() -> str:
    rows = [
        f"| `{method} {API}{path.replace(':name}', '}')}` | {summary} | {role.value} |\n"
        for method, path, summary, role in sorted(calls(), key=lambda call: (call[1], call[0]))
    ]
    return "\n| call | does | least role |\n|---|---|---|\n" + "".join(rows) + "\n"


def test_every_call_is_described():
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("REWRITE_DOCS"):
        text = _TABLE.sub(lambda _: table(), text)
        PAGE.write_text(text, encoding="utf-8")
    found = _TABLE.search(text)
    assert found is not None
    assert found[0] == table(), "run it with REWRITE_DOCS=1"


def test_every_call_of_the_openapi_document_is_in_the_table():
    told = {(method, path.replace(":name}", "}")) for method, path, *_ in calls()}
    for path, operations in document(API)["paths"].items():
        for method in operations:
            assert (method.upper(), path) in told


def test_the_codes_of_the_server_itself_are_described():
    text = PAGE.read_text(encoding="utf-8")
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "schedulemesh" / "server").glob("*.py")
    )
    codes = set(re.findall(r"Problem\(\s*\d+,\s*\"(\w+)\"", sources))
    assert "host_not_allowed" in codes
    assert {code for code in codes if f"`{code}`" not in text} == set()
