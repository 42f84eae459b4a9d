"""Links from tasks to pages elsewhere, such as W&B or TensorBoard, from templates of the policy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from schedulemesh.domain.containers import plain_data
from schedulemesh.domain.names import as_text, parse_name
from schedulemesh.domain.task import TaskSpec
from schedulemesh.errors import InvalidRequestError, nearest, shown

#: Links of a task, and characters of a template.
MAX_LINKS, _MAX_TEMPLATE = 20, 2_000
#: What stands for a value in a template, beside ``label.KEY``.
FIELDS = ("task", "pool", "owner", "priority", "array", "index", "agent", "node")
#: What a field for the label of a task begins with.
_LABEL = "label."
#: As parts of a path these lead to another page than the template says, quoted or not.
_NO_VALUES = ("", ".", "..")
_FIELD = re.compile(r"\{([^{}]*)\}")


def parse_links(value: object) -> dict[str, str]:
    """Templates of addresses by the names of links. Raises InvalidRequestError for one that is no address of
    http or https, and for unknown fields.
    """
    templates = plain_data(value, "links")
    if not isinstance(templates, Mapping):
        raise InvalidRequestError(
            f"links is {shown(value)}; it is a dict of names and addresses, such as "
            "{'wandb': 'https://wandb.ai/team/{label.run}'}"
        )
    if len(templates) > MAX_LINKS:
        raise InvalidRequestError(
            f"links has {len(templates)} entries; a task has up to {MAX_LINKS}"
        )
    return {
        parse_name(name, "the name of a link"): _parse_template(name, template)
        for name, template in templates.items()
    }


def _parse_template(name: object, value: object) -> str:
    template = as_text(value)
    if not template or len(template) > _MAX_TEMPLATE or not template.isprintable():
        raise InvalidRequestError(
            f"link {shown(name)} is {shown(value)}; it is an address of up to {_MAX_TEMPLATE:,} characters"
        )
    fields = _FIELD.findall(template)
    for field in fields:
        if field not in FIELDS and not (field.startswith(_LABEL) and field != _LABEL):
            raise InvalidRequestError(
                f"link {shown(name)} has the unknown field {{{field}}}{nearest(field, FIELDS)}; there are "
                f"{', '.join(FIELDS)} and label.KEY"
            )
    if "{" in _FIELD.sub("", template) or "}" in _FIELD.sub("", template):
        raise InvalidRequestError(f"link {shown(name)} has a brace without its other one")
    if not _is_address(template):
        raise InvalidRequestError(
            f"link {shown(name)} is {shown(template)}; it begins with http:// or https:// and a host, in "
            "which there are no fields"
        )
    return template


def _is_address(template: str) -> bool:
    try:
        url = urlsplit(template)
        host = url.hostname
    except ValueError:
        return False
    has_fields = bool(_FIELD.search(url.netloc))
    return url.scheme in ("http", "https") and bool(host) and not has_fields and " " not in template


def links_of(
    templates: Mapping[str, str], task: TaskSpec, agent_name: str = "", node_id: str | None = None
) -> dict[str, str]:
    """The links of a task by their names. One of which the task has not all values is left out. Values are
    quoted, so that none of them leads elsewhere.
    """
    if not templates:
        return {}
    values: dict[str, str] = {
        "task": task.task_id,
        "pool": task.pool_name,
        "owner": task.owner,
        "priority": f"{task.priority:g}",
        "array": task.array_id,
        "index": "" if task.array_index is None else str(task.array_index),
        "agent": agent_name,
        "node": node_id or "",
        **{_LABEL + key: label for key, label in task.labels.items()},
    }
    return {
        name: _FIELD.sub(lambda field: quote(values[field[1]], safe=""), template)
        for name, template in templates.items()
        if all(values.get(field, "") not in _NO_VALUES for field in _FIELD.findall(template))
    }
