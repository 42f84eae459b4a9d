"""The dashboard for Grafana: its form, and that Prometheus takes its expressions."""

from __future__ import annotations

import json
import re

import yaml

from schedulemesh.metrics.catalogue import CATALOGUE
from schedulemesh.metrics.dashboard import dashboard
from tests.metrics.promtool import checked, needs_promtool

PARTS = re.compile(r"schedulemesh_\w+")
BOTH_NAMES = re.compile(r'__name__=~"\(ray_\)\?schedulemesh_\w+"')


def panels():
    return json.loads(dashboard())["panels"]


def expressions():
    found = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert len(found) > 20
    return found


def test_every_metric_is_in_the_catalogue():
    known = set(CATALOGUE)
    for metric in CATALOGUE.values():
        if metric.buckets:
            known |= {f"{metric.name}_{end}" for end in ("bucket", "sum", "count")}
    for expression in expressions():
        used = PARTS.findall(expression)
        assert used
        assert set(used) <= known, expression


def test_labels_of_expressions_and_legends_are_those_of_the_metrics():
    for panel in panels():
        for target in panel.get("targets", ()):
            names = [re.sub("_(bucket|sum|count)$", "", n) for n in PARTS.findall(target["expr"])]
            known = {
                label
                for name in [*names, *PARTS.findall(target["expr"])]
                if name in CATALOGUE
                for label in CATALOGUE[name].labels
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target
            for selector in re.findall(r"\{([^}]*)\}", target["expr"]):
                labels = set(re.findall(r"(\w+)=", selector))
                assert labels <= known | {"instance", "__name__"}, target


def test_both_names_of_each_metric_are_asked_for():
    for expression in expressions():
        assert len(BOTH_NAMES.findall(expression)) == len(PARTS.findall(expression)), expression


def test_what_grafana_needs():
    found = json.loads(dashboard())
    assert found["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    for panel in found["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_panels_do_not_overlap():
    taken = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_subject_has_panels():
    titles = " ".join(panel["title"].lower() for panel in panels())
    for subject in (
        "queue",
        "wait",
        "quota",
        "preemptions",
        "submission until",
        "agents",
        "placement groups",
        "gpus",
        "decisions",
        "alerts",
    ):
        assert subject in titles, subject


@needs_promtool
def test_prometheus_takes_every_expression(tmp_path):
    """Each is checked as the expression of a recording rule."""
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions())
    ]
    group = {"name": "dashboard", "rules": rules}
    code, said = checked(tmp_path, yaml.safe_dump({"groups": [group]}))
    assert (code, f"SUCCESS: {len(rules)} rules found" in said) == (0, True), said
