"""The alias distribution is of the same version and offers the same extras."""

from __future__ import annotations

import re

from schedulemesh import __version__
from tests.docs.documents import ROOT

ALIAS = (ROOT / "packaging" / "schedulemesh" / "pyproject.toml").read_text(encoding="utf-8")


def test_both_distributions_have_the_same_version():
    assert f'\nversion = "{__version__}"\n' in ALIAS
    pins = re.findall(r'"schedulemesh-core(?:\[full\])?==([^"]*)"', ALIAS)
    assert pins == [__version__, __version__]


def test_both_distributions_need_the_same_python():
    core = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.compile(r"^requires-python = .*$", re.MULTILINE)
    assert wanted.findall(ALIAS) == wanted.findall(core)


def test_the_alias_distribution_has_no_modules():
    assert list((ROOT / "packaging" / "schedulemesh").rglob("*.py")) == []
