"""The OpenAPI document, made from the tables of calls and from the types of their bodies and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from schedulemesh.api.pages import MAX_LIMIT
from schedulemesh.api.rows import allowed_values, scalar_fields
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import ChangeRoute
from schedulemesh.server.changes import CHANGES
from schedulemesh.server.history import (
    QUESTIONS,
    STREAM_PARAMETERS,
    STREAM_PATH,
    STREAM_SUMMARY,
    Question,
)
from schedulemesh.server.listings import DEFAULT_LIMIT
from schedulemesh.server.parameters import QueryParameter
from schedulemesh.server.reads import LISTINGS, SINGLES, ListingEndpoint, Single
from schedulemesh.server.task_reads import TASK_READS, TaskRead

Json = dict[str, Any]

#: Of the API, not of the package.
_VERSION = "1.0"
_PARAMETER = re.compile(r"\{(\w+)(?::name)?\}")
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
#: The statuses of errors that every call may be answered with.
_ERRORS = {
    "400": "The request is malformed.",
    "401": "The token is missing or not accepted.",
    "403": "The token's role does not allow it.",
    "404": "What it names does not exist.",
    "409": "The scheduler refuses it; `reason` says why.",
    "413": "The body is too large.",
    "421": "The Host header does not name this server.",
    "500": "The server failed; its log says how.",
    "503": "The supervisor does not answer.",
    "504": "What was waited for did not happen in time.",
}


def document(prefix: str) -> Json:
    """The OpenAPI document of the calls below a prefix."""
    schemas_by_type, components = _components()
    paths: Json = {}
    for listing in LISTINGS:
        _add(paths, listing.path, "get", _listing(listing, schemas_by_type))
        if listing.missing is not None:
            path = f"{listing.path}/{{{listing.key[0]}}}"
            _add(paths, path, "get", _row(listing, path, schemas_by_type))
    for single in SINGLES:
        _add(paths, single.path, "get", _single(single, schemas_by_type))
    for read in TASK_READS:
        _add(paths, read.path, "get", _task_read(read, schemas_by_type))
    for question in QUESTIONS:
        _add(paths, question.path, "get", _question(question, schemas_by_type))
    _add(paths, STREAM_PATH, "get", _stream())
    for change in CHANGES:
        _add(paths, change.path, change.method.lower(), _change(change, schemas_by_type))
    return {
        "openapi": "3.1.0",
        "info": {"title": "ScheduleMesh", "version": _VERSION},
        "servers": [{"url": prefix}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _components() -> tuple[Mapping[Any, Json], Json]:
    """The schema of each type, and the schemas to which they refer."""
    types: list[Any] = [schemas.Error]
    types += [listing.row for listing in LISTINGS]
    types += [question.row for question in QUESTIONS]
    types += [single.answer for single in SINGLES if single.answer is not None]
    types += [read.answer for read in TASK_READS]
    types += [c.answer for c in CHANGES if c.answer is not None]
    types += [c.body for c in CHANGES if _is_body(c) and c.body is not bodies.Nothing]
    types = list(dict.fromkeys(types))
    type_schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    return dict(zip(types, type_schemas, strict=True)), dict(components)


def _add(paths: Json, path: str, method: str, operation: Json) -> None:
    shown = _PARAMETER.sub(r"{\1}", path)
    paths.setdefault(shown, {})[method] = operation


def _operation(method: str, path: str, summary: str, answer: Json) -> Json:
    """What every operation has."""
    errors = {
        status: _content(text, {"$ref": "#/components/schemas/Error"})
        for status, text in _ERRORS.items()
    }
    named: Json = {
        "operationId": _operation_id(method, path),
        "summary": summary,
        "responses": {"200": _content("What was asked for.", answer), **errors},
    }
    if parameters := [_in_path(name) for name in _PARAMETER.findall(path)]:
        named["parameters"] = parameters
    return named


def _operation_id(method: str, path: str) -> str:
    words = [word for word in re.split(r"\W+", _PARAMETER.sub(r"by_\1", path)) if word]
    return "_".join([method, *words])


def _in_path(name: str) -> Json:
    schema = {"type": "string", "minLength": 1, "maxLength": 253}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _content(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _listing(listing: ListingEndpoint, type_schemas: Mapping[Any, Json]) -> Json:
    beside: Json = {"total": {"type": "integer"}, "next": {"type": ["string", "null"]}}
    operation = _operation(
        "get", listing.path, listing.summary, _rows(type_schemas[listing.row], beside)
    )
    operation["parameters"] = list(_query(listing.row))
    return operation


def _question(question: Question, type_schemas: Mapping[Any, Json]) -> Json:
    answer = _rows(type_schemas[question.row], question.beside)
    operation = _operation("get", question.path, question.summary, answer)
    operation["parameters"] = [_parameter(parameter) for parameter in question.parameters]
    if question.listed:
        operation["parameters"] += _query(question.row)
    return operation


def _stream() -> Json:
    operation = _operation("get", STREAM_PATH, STREAM_SUMMARY, {})
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    operation["responses"]["200"] = {
        "description": "Events, until it is closed.",
        "content": content,
    }
    resume = {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The `id` of the last event that was received; it is preferred to `after`.",
        "schema": {"type": "string", "pattern": "^[0-9]*$"},
    }
    operation["parameters"] = [*map(_parameter, STREAM_PARAMETERS), resume]
    return operation


def _rows(row: Json, beside: Mapping[str, Json]) -> Json:
    """The answer of a listing: its rows, and what it has beside them."""
    return {
        "type": "object",
        "required": ["success", "items", *beside],
        "properties": {
            "success": {"const": True},
            "items": {"type": "array", "items": row},
            **beside,
        },
    }


def _parameter(parameter: QueryParameter) -> Json:
    return _in_query(parameter.name, parameter.means, parameter.schema)


def _query(row: Any) -> Iterable[Json]:
    """The parameters by which a listing is filtered, sorted and cut into pages."""
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    yield _in_query("limit", "How many rows a page has.", limit)
    yield _in_query("cursor", "`next` of the page before.", {"type": "string"})
    yield _in_query("sort", "Fields, separated by commas; `-` before one: descending.", _STRING)
    if "labels" in row.__annotations__:
        yield _in_query("label", "KEY=VALUE or KEY; every one has to hold.", _MANY)
    for name, kind in scalar_fields(row).items():
        allowed = allowed_values(row, name)
        items = {"type": _TYPES[kind], **({"enum": list(allowed)} if allowed else {})}
        schema = {"type": "array", "items": items}
        yield _in_query(name, "Only rows with one of these values.", schema)


_STRING: Json = {"type": "string"}
_MANY: Json = {"type": "array", "items": _STRING}


def _in_query(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _row(listing: ListingEndpoint, path: str, type_schemas: Mapping[Any, Json]) -> Json:
    summary = f"Read one: {listing.summary[0].lower()}{listing.summary[1:]}"
    return _operation("get", path, summary, type_schemas[listing.row])


def _single(single: Single, type_schemas: Mapping[Any, Json]) -> Json:
    return _operation("get", single.path, single.summary, _answer(single.answer, type_schemas))


def _task_read(read: TaskRead, type_schemas: Mapping[Any, Json]) -> Json:
    operation = _operation("get", read.path, read.summary, type_schemas[read.answer])
    operation["description"] = f"Needs a token of the role {read.asks.least_role.value}."
    operation["parameters"] += [_parameter(parameter) for parameter in read.parameters]
    return operation


def _change(change: ChangeRoute, type_schemas: Mapping[Any, Json]) -> Json:
    answer = _answer(change.answer, type_schemas)
    operation = _operation(change.method.lower(), change.path, change.summary, answer)
    operation["description"] = f"Needs a token of the role {change.asks.least_role.value}."
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same request with the same key is carried out once.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 253},
    }
    operation.setdefault("parameters", []).append(key)
    if change.body is not bodies.Nothing:
        schema = type_schemas[change.body] if _is_body(change) else None
        media_types = ["application/json", *(["application/msgpack"] if change.packed else [])]
        body = {kind: {"schema": schema or {"type": "object"}} for kind in media_types}
        operation["requestBody"] = {"required": change.method != "DELETE", "content": body}
    return operation


def _is_body(change: ChangeRoute) -> bool:
    """Whether the fields of its body are known; else it is an object whose fields a policy names."""
    return isinstance(change.body, type) and issubclass(change.body, bodies.Body)


def _answer(kind: Any, type_schemas: Mapping[Any, Json]) -> Json:
    return {"type": "object"} if kind is None else type_schemas[kind]
