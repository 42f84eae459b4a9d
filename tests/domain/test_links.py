"""Links from tasks to pages elsewhere: which templates there may be, and what becomes of them."""

from __future__ import annotations

import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.domain.links import MAX_LINKS, links_of, parse_links
from schedulemesh.domain.task import TaskSpec
from schedulemesh.errors import InvalidRequestError

TASK = TaskSpec(
    task_id="训练/1",
    pool_name="p",
    owner="ann",
    priority=5.0,
    labels={"run": "a b&c=d", "up": ".."},
)


def links(template, **where):
    return links_of(parse_links({"x": template}), TASK, **where).get("x")


def test_values_are_quoted_so_that_they_lead_nowhere_else():
    assert links("https://wandb.ai/t/{label.run}?o={owner}") == (
        "https://wandb.ai/t/a%20b%26c%3Dd?o=ann"
    )
    assert links("https://h/{task}/{priority}") == "https://h/%E8%AE%AD%E7%BB%83%2F1/5"
    assert links("https://h/{label.up}/x") is None


def test_a_link_without_all_values_is_left_out():
    assert links("https://h/{label.other}") is None
    assert links("https://h/{node}") is None
    assert links("https://h/{index}") is None
    assert links("http://ray:8265/#/cluster/nodes/{node}", node_id="ab") == (
        "http://ray:8265/#/cluster/nodes/ab"
    )
    assert links("https://h/{agent}", agent_name="a-1") == "https://h/a-1"
    assert links("https://h/") == "https://h/"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://h/{labels.run}", "unknown field {labels.run}"),
        ("https://h/{takes}", "did you mean 'task'"),
        ("https://h/{label.}", "unknown field {label.}"),
        ("https://h/{}", "unknown field {}"),
        ("https://h/{task", "a brace without its other one"),
        ("javascript:alert(1)", "begins with http:// or https://"),
        ("ftp://h/{task}", "begins with http:// or https://"),
        ("https://{label.run}/", "in which there are no fields"),
        ("https://h.{owner}/", "in which there are no fields"),
        ("https:///x", "and a host"),
        ("https://[/", "and a host"),
        ("https://h/a b", "begins with"),
        ("", "an address of up to"),
        (3, "an address of up to"),
    ],
)
def test_what_is_no_template_is_refused(template, words):
    with pytest.raises(InvalidRequestError) as refused:
        PreemptionPolicy(links={"x": template})
    assert words in str(refused.value)


@pytest.mark.parametrize("value", ["https://h", 3, {"": "https://h"}, {"a\n": "https://h"}])
def test_what_are_no_links_is_refused(value):
    with pytest.raises(InvalidRequestError):
        parse_links(value)
    with pytest.raises(InvalidRequestError, match="up to 20"):
        parse_links({str(number): "https://h" for number in range(MAX_LINKS + 1)})
