"""Reads on which nodes an agent may run, and the ways in which it may run instead, as callers write them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from schedulemesh.config.groups import parse_bundles
from schedulemesh.domain.agent import Alternative
from schedulemesh.domain.containers import as_elements, as_fields
from schedulemesh.domain.node_labels import NodeLabels, all_of, parse_node_labels
from schedulemesh.domain.resources import Resources, parse_resources, sum_of
from schedulemesh.errors import InvalidRequestError

#: What an agent takes in all (None: the same as in its first alternative), and its bundles.
Amount = tuple[Resources | None, tuple[Resources, ...]]
#: Reads the amounts of one alternative from its fields; the text is what it is called in errors.
AmountParser = Callable[[Mapping[str, object], str], Amount]

_LABELS = "label_selector"
_FALLBACKS = "fallback_strategy"
_FORM = "a list such as [{'label_selector': {'ray.io/accelerator-type': 'A100'}}]"


def parse_placement(
    arguments: Mapping[str, object],
    parse_amount: AmountParser,
    amounts: Collection[str] = ("resources", "bundles"),
    common: NodeLabels = (),
) -> tuple[NodeLabels, tuple[Alternative, ...]]:
    """The labels of the nodes that ``label_selector`` asks for, and the alternatives of
    ``fallback_strategy``. ``amounts``: the fields with which one of them says what it takes; ``common``:
    labels that nodes need in each of them. Raises InvalidRequestError.
    """
    node_labels = parse_node_labels(arguments.get(_LABELS), _LABELS)
    elements = as_elements(arguments.get(_FALLBACKS) or (), _FALLBACKS, _FORM)
    others = []
    for number, element in enumerate(elements):
        what = f"{_FALLBACKS}[{number}]"
        fields = as_fields(element, what, (_LABELS, *amounts), "a dict")
        selector = parse_node_labels(fields.get(_LABELS), f"{what}['{_LABELS}']")
        resources, bundles = parse_amount(fields, what)
        others.append(
            Alternative(node_labels=all_of(common, selector), resources=resources, bundles=bundles)
        )
    return all_of(common, node_labels), tuple(others)


def resources_or_bundles(fields: Mapping[str, object], what: str) -> Amount:
    """The amounts of an agent or a job: ``resources`` in all, or ``bundles``. Raises InvalidRequestError."""
    if "bundles" not in fields:
        if "resources" not in fields:
            return None, ()
        return parse_resources(fields["resources"], f"{what}['resources']"), ()
    bundles = parse_bundles(fields["bundles"], f"{what}['bundles']")
    total = sum_of(bundles)
    if "resources" in fields and parse_resources(fields["resources"]) != total:
        raise InvalidRequestError(
            f"{what} has resources that are not the sum of its bundles; leave them out"
        )
    return total, bundles
