"""Ray kills processes where memory runs out: what records say, what ``on_oom`` does, and the supervisor."""

from __future__ import annotations

import re

import pytest

from tests.clusters.out_of_memory import HOG_MB, ROOM_MB, memory_mb
from tests.integration.drivers import output_of

pytestmark = [
    pytest.mark.timeout(480),
    pytest.mark.skipif(
        memory_mb()[1] < HOG_MB + ROOM_MB, reason="the machine has too little free memory"
    ),
]
FIGURES = re.compile(r"it had [\d.]+ GB, and [\d.]+ of [\d.]+ GB were in use there")


@pytest.fixture(scope="module")
def told():
    return output_of("tests.clusters.out_of_memory", 450)


def test_the_record_of_a_task_has_the_figures(told):
    assert told["lost"]["state"] == "lost"
    assert FIGURES.search(told["lost"]["error"])


def test_a_task_fails_at_once_where_it_says_so(told):
    assert (told["fails"]["state"], told["fails"]["reason"]) == ("failed", "out_of_memory")


def test_a_task_grows_as_far_as_it_says(told):
    grown = told["grows"]
    assert (grown["state"], grown["reason"], grown["failures"]) == ("failed", "out_of_memory", 3)
    assert "it had 3000 MB" in grown["error"]


def test_the_supervisor_served_throughout_and_is_no_first_choice_of_the_kernel(told):
    assert told["after"], "it is back, whether or not Ray killed it"
    assert told["oom_score_adj"] < 1000
