"""The command submit: the claim that its options describe."""

from __future__ import annotations

import pytest

from schedulemesh.cli.jobs import parse_bundle_words
from schedulemesh.errors import InvalidRequestError


def test_bundles_are_amounts_by_name():
    assert parse_bundle_words(["cpu=8,gpu=4", "memory=10,licence=2"]) == [
        {"cpu": 8, "gpu": 4},
        {"memory": 10, "custom": {"licence": 2}},
    ]


def test_without_bundles_there_are_none():
    assert parse_bundle_words([]) is None


@pytest.mark.parametrize("word", ["cpu", "", "=4", "cpu=4,"])
def test_what_is_no_bundle_is_refused(word):
    with pytest.raises(InvalidRequestError):
        parse_bundle_words([word])
