"""What jobs start with Ray's job API, and what their workers leave, ends with them; a cache may stay.

The cluster is in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.integration.drivers import output_of


@pytest.fixture(scope="module")
def told():
    """What the program told."""
    return output_of("tests.clusters.job_api", 300)


def test_submissions_and_daemons_of_a_job_end_with_it_and_its_cache_stays(told):
    assert told["living"] == ["cache", "daemon", "other", "plain", "uses_ray"]
    assert told["stay"] == ["cache"]
    assert told["actors"] == ["cache"]
    assert told["cache"]


def test_submissions_of_a_job_are_no_external_work(told):
    assert told["external"] == []


def test_a_driver_finds_the_modules_that_were_sent_with_it(told):
    assert told["module"] == "found"
