"""Finding strategies by entry point and by import path."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from schedulemesh.cli.app import app
from schedulemesh.errors import InvalidRequestError
from schedulemesh.plugins import DispatchStrategyPlugin, SchedulingStrategyPlugin
from schedulemesh.plugins.alerting import AlertReceiver
from schedulemesh.plugins.discovery import (
    DISPATCH_GROUP,
    RECEIVER_GROUP,
    SCHEDULING_GROUP,
    installed,
    is_path,
    load_class,
    resolve,
)

SOURCE = '''
from schedulemesh.plugins import DispatchStrategyPlugin, SchedulingStrategyPlugin

class Mine(SchedulingStrategyPlugin):
    """Scores as it likes."""

    class Inner(SchedulingStrategyPlugin):
        pass

class Refuses(SchedulingStrategyPlugin):
    def __init__(self):
        raise RuntimeError("no licence")

class Cuts(DispatchStrategyPlugin):
    """Cuts in two."""

class Duck:
    """Deals as it likes, and derives from nothing."""

    def python_dispatch_fn(self, data, workers_a, workers_b):
        return data

duck = Duck()
nothing = 7
'''

ENTRY_POINTS = """
[schedulemesh.scheduling_strategies]
mine = outsiders:Mine
gone = outsiders:Gone
refuses = outsiders:Refuses
wordless = outsiders:Mine.Inner

[schedulemesh.dispatch_strategies]
cuts = outsiders:Cuts
duck = outsiders:duck
third = outsiders:Mine
exits = outsiders_exit:X
"""


@pytest.fixture
def outsiders(tmp_path, monkeypatch):
    """A distribution with strategies, installed as far as Python can tell."""
    (tmp_path / "outsiders.py").write_text(SOURCE)
    (tmp_path / "outsiders_exit.py").write_text("raise SystemExit(3)")
    info = tmp_path / "outsiders-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outsiders\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("outsiders", None)


def test_installed_ones_are_found_by_group(outsiders):
    found = {one.name: one for one in installed(SCHEDULING_GROUP)}
    assert found["mine"].path == "outsiders:Mine"
    assert found["mine"].distribution == "outsiders"
    assert "cuts" in {one.name for one in installed(DISPATCH_GROUP)}


def test_a_name_resolves_to_its_import_path(outsiders):
    assert resolve("mine", SCHEDULING_GROUP) == "outsiders:Mine"
    assert resolve("any.module:Class", SCHEDULING_GROUP) == "any.module:Class"
    with pytest.raises(InvalidRequestError, match=r"no strategy 'cuts'.*gone, mine"):
        resolve("cuts", SCHEDULING_GROUP)


def test_classes_are_loaded_by_path(outsiders):
    assert issubclass(load_class("outsiders:Mine", SCHEDULING_GROUP), SchedulingStrategyPlugin)
    assert load_class("outsiders:Mine.Inner", SCHEDULING_GROUP).__name__ == "Inner"
    assert issubclass(load_class("outsiders:Cuts", DISPATCH_GROUP), DispatchStrategyPlugin)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("outsiders:Gone", "AttributeError"),
        ("no_such_module:X", "ModuleNotFoundError"),
        ("outsiders:nothing", "not a subclass of SchedulingStrategyPlugin"),
        ("outsiders:Cuts", "not a subclass of SchedulingStrategyPlugin"),
    ],
)
def test_an_object_that_is_no_plugin_is_refused(outsiders, path, why):
    with pytest.raises(InvalidRequestError, match=why):
        load_class(path, SCHEDULING_GROUP)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:B", True),
        ("a.b:C.D", True),
        ("a", False),
        (":B", False),
        ("a b:C", False),
        ("a:", False),
    ],
)
def test_an_import_path_is_distinguished_from_a_name(text, expected):
    assert is_path(text) is expected


def test_a_missing_dispatch_hook_is_an_error():
    plugin = DispatchStrategyPlugin()
    with pytest.raises(NotImplementedError, match="no python_dispatch_fn"):
        plugin.python_dispatch_fn([], None, None)
    with pytest.raises(NotImplementedError, match="no torch_dispatch_fn"):
        plugin.torch_dispatch_fn(None, None, None)


def test_the_command_lists_them_in_80_columns(outsiders, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, ["plugins"])
    assert done.exit_code == 1  # one of them is broken
    lines = done.stdout.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    told = {line.split()[0]: line for line in lines if line[:1].strip()}
    assert "built in" in told["fragmentation_aware"]
    assert "victims" in told["priority_first"]
    assert "Scores as it likes." in told["mine"]
    assert "dispatch" in told["cuts"]
    assert "BROKEN" in told["gone"]
    assert "BROKEN" in told["refuses"], "it is made as the scheduler makes it"
    assert "outsiders:Mine.Inner" in told["wordless"], "its base's words are not its own"
    assert "Deals as it likes" in told["duck"], "what the loader takes is fine"
    assert "BROKEN" in told["third"], "what the loader refuses is not"
    assert "SystemExit(3)" in told["exits"]
    for name in ("data_parallel", "every_rank", "replicate"):
        assert "built in" in told[name]


def test_a_receiver_of_alerts_is_found_by_its_path():
    found = load_class("tests.runtime.alert_receivers:Recording", RECEIVER_GROUP)
    assert issubclass(found, AlertReceiver)
    with pytest.raises(InvalidRequestError, match="is not a subclass of AlertReceiver"):
        load_class("tests.runtime.alert_receivers:WebhookServer", RECEIVER_GROUP)
    with pytest.raises(InvalidRequestError, match="there is no receiver of alerts 'pager'"):
        resolve("pager", RECEIVER_GROUP)
