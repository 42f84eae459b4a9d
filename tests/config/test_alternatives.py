"""What callers write about nodes and alternatives, read in one place for every kind of task."""

import pytest

from schedulemesh.config.alternatives import parse_placement, resources_or_bundles
from schedulemesh.domain.agent import Alternative
from schedulemesh.domain.resources import parse_resources
from schedulemesh.errors import InvalidRequestError

MODEL = "ray.io/accelerator-type"


def parsed(selector=None, *fallbacks, **more):
    arguments = {"label_selector": selector, "fallback_strategy": list(fallbacks) or None}
    return parse_placement(arguments, resources_or_bundles, **more)


def test_nothing_asked_is_any_node():
    assert parsed() == ((), ())


def test_a_selector_and_what_will_do_instead():
    labels, others = parsed(
        {MODEL: "in(H100,H200)"},
        {"label_selector": {MODEL: "!in(L40S)", "zone": "a"}},
        {"label_selector": {MODEL: "L40S"}, "resources": {"gpu": 2}},
        {"bundles": [{"gpu": 1}, {"gpu": 1}]},
    )
    one, two = parse_resources({"gpu": 1}), parse_resources({"gpu": 2})
    assert labels == ((MODEL, "in(H100,H200)"),)
    assert others == (
        Alternative(node_labels=((MODEL, "!in(L40S)"), ("zone", "a"))),
        Alternative(node_labels=((MODEL, "L40S"),), resources=two),
        Alternative(resources=two, bundles=(one, one)),
    )


def test_what_is_common_holds_in_every_alternative():
    common = ((MODEL, "H100"),)
    labels, others = parsed({"zone": "a"}, {"label_selector": {"zone": "b"}}, common=common)
    assert labels == ((MODEL, "H100"), ("zone", "a"))
    assert others[0].node_labels == ((MODEL, "H100"), ("zone", "b"))


@pytest.mark.parametrize(
    ("fallbacks", "message"),
    [
        ("A100", "fallback_strategy must be"),
        ({"label_selector": {}}, "fallback_strategy must be"),
        ([3], r"fallback_strategy\[0\] must be a dict"),
        (
            [{"labels": {}}],
            r"fallback_strategy\[0\] has 'labels'.*it takes label_selector, resources",
        ),
        (
            [{}, {"label_selector": {"a": "in()"}}],
            r"fallback_strategy\[1\]\['label_selector'\]\['a'\]",
        ),
        (
            [{"resources": {"gpus": 2}}],
            r"fallback_strategy\[0\]\['resources'\].*did you mean 'gpu'",
        ),
        ([{"resources": {"gpu": 1}, "bundles": [{"gpu": 2}]}], "not the sum of its bundles"),
    ],
)
def test_the_error_names_the_place_and_what_is_allowed(fallbacks, message):
    with pytest.raises(InvalidRequestError, match=message):
        parse_placement({"fallback_strategy": fallbacks}, resources_or_bundles)
