"""The options of submit that choose nodes."""

import pytest

from schedulemesh.cli.node_choice import fallback_strategy, node_selector
from schedulemesh.errors import InvalidRequestError

MODEL = "ray.io/accelerator-type"


def same(changed):
    return dict(changed)


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        (None, [], None),
        ("H100", [], {MODEL: "H100"}),
        ("H100,A100", ["zone=!b"], {MODEL: "in(H100,A100)", "zone": "!b"}),
        (None, ["zone=in(a, b)"], {"zone": "in(a, b)"}),
        (None, [f"{MODEL}=!in(L40S)"], {MODEL: "!in(L40S)"}),
    ],
)
def test_the_selector(model, words, expected):
    assert node_selector(model, words) == expected


def test_alternatives_keep_their_order_and_say_only_what_changes():
    assert fallback_strategy(["gpu-model=A100", "gpu-model=L40S,gpus=2,zone=in(a, b)"], same) == [
        {"label_selector": {MODEL: "A100"}},
        {"label_selector": {MODEL: "L40S", "zone": "in(a, b)"}, "resources": {"gpu": 2}},
    ]
    assert fallback_strategy([], same) is None
    assert fallback_strategy(["gpu-model=A100,resource.a100=1"], same) == [
        {"label_selector": {MODEL: "A100"}, "resources": {"custom": {"a100": 1}}}
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: node_selector("H100", [f"{MODEL}=A100"]), "given twice"),
        (lambda: node_selector(None, ["zone"]), "--node-label is 'zone'; a label is LABEL=VALUE"),
        (lambda: fallback_strategy(["L40S"], same), "--or is 'L40S'; an alternative is NAME=VALUE"),
    ],
)
def test_errors_say_the_form(call, message):
    with pytest.raises(InvalidRequestError, match=message):
        call()
