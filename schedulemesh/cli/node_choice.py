"""The options of ``submit`` that choose nodes: a model of GPU, labels, and what will do instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from schedulemesh.cli.changes import assignments, pairs
from schedulemesh.errors import InvalidRequestError

#: A comma that is not within the parentheses of ``in(a, b)``.
_COMMA = re.compile(r",(?![^()]*\))")
_LABEL_FORM = "a label is LABEL=VALUE; the value may be '!value', 'in(a, b)' or '!in(a, b)'"
#: What an alternative says beside labels, by the words of the other options.
_MODEL, _KINDS = "gpu-model", {"gpus": "gpu", "cpus": "cpu", "memory": "memory"}
#: What the name of a custom resource begins with there.
_CUSTOM = "resource."
_FORM = (
    "an alternative is NAME=VALUE,… of gpu-model, gpus, cpus, memory, resource.NAME and labels of nodes, "
    "such as gpu-model=L40S,gpus=2"
)


def node_selector(model: str | None, words: Iterable[str]) -> dict[str, str] | None:
    """The ``label_selector`` for a model of GPU, or several with commas, and for words LABEL=VALUE; None: any
    node will do. Raises InvalidRequestError.
    """
    return _selector(model, pairs(words, "--node-label", _LABEL_FORM)) or None


def fallback_strategy(
    words: Iterable[str], resources: Callable[[Mapping[str, object]], Mapping[str, object] | None]
) -> list[dict[str, object]] | None:
    """The ``fallback_strategy`` for the values of --or; None: there are none. ``resources``: what the job
    asks for where these amounts take the place of its own. Raises InvalidRequestError.
    """
    alternatives = []
    for word in words:
        fields = pairs(_COMMA.split(word), "--or", _FORM)
        model = fields.pop(_MODEL, None)
        changed = assignments(
            f"{_KINDS[name]}={fields.pop(name)}" for name in _KINDS if name in fields
        )
        custom = [name for name in fields if name.startswith(_CUSTOM)]
        if custom:
            changed["custom"] = assignments(
                f"{name.removeprefix(_CUSTOM)}={fields.pop(name)}" for name in custom
            )
        alternative: dict[str, object] = {"label_selector": _selector(model, fields)}
        if changed:
            alternative["resources"] = resources(changed)
        alternatives.append(alternative)
    return alternatives or None


def _selector(model: str | None, labels: Mapping[str, str]) -> dict[str, str]:
    from schedulemesh.domain.node_labels import ACCELERATOR_TYPE

    if model is None:
        return dict(labels)
    if not all(name.strip() for name in model.split(",")):
        raise InvalidRequestError(
            f"the model of GPU is {model!r}; it takes a name such as H100, or several as H100,A100"
        )
    if ACCELERATOR_TYPE in labels:
        raise InvalidRequestError(
            f"a model of GPU is given twice, as {model!r} and by the label {ACCELERATOR_TYPE}; say it once"
        )
    condition = f"in({model})" if "," in model else model
    return {ACCELERATOR_TYPE: condition, **labels}
