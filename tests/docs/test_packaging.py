"""What `pip install` brings: the extras, and the alias distribution, which is of the same version."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from schedulemesh import __version__
from tests.docs.documents import ROOT

ALIAS = (ROOT / "packaging" / "schedulemesh" / "pyproject.toml").read_text(encoding="utf-8")
CORE = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def extras(text):
    """The requirements of each extra, by its name."""
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    blocks = re.findall(r"^(\w+) = \[(.*?)\](?: #[^\n]*)?$", section, re.DOTALL | re.MULTILINE)
    return {name: re.findall(r'"([^"]+)"', block) for name, block in blocks}


def test_full_has_every_feature_that_needs_no_accelerator():
    features = set(extras(CORE)) - {"full", "gpu", "dev", "docs"}
    assert features == {
        *("checkpoints", "data", "otel", "parquet", "postgres", "serve", "simulate"),
        *("train", "tune"),
    }
    [reference] = [need for need in extras(CORE)["full"] if "schedulemesh-core" in need]
    assert reference == f"schedulemesh-core[{','.join(sorted(features))}]"


def test_torch_is_in_no_extra():
    needs = [need for each in extras(CORE).values() for need in each]
    assert needs
    assert not any(need.startswith("torch") for need in needs)


def test_gpu_adds_nvml():
    assert [need.partition(">")[0] for need in extras(CORE)["gpu"]] == ["nvidia-ml-py"]


@pytest.mark.parametrize(
    "module",
    [
        "fastapi",
        "matplotlib",
        "numpy",
        "pandas",
        "psycopg",
        "pyarrow",
        "safetensors",
        "tensorboardX",
    ],
)
def test_what_the_features_need_is_installed_for_development(module):
    """So that `make test` runs their tests."""
    assert find_spec(module)


def test_the_alias_has_the_extras_that_are_for_users():
    assert extras(ALIAS) == {
        name: [f"schedulemesh-core[{name}]=={__version__}"] for name in ("full", "gpu")
    }


def test_both_distributions_have_the_same_version():
    assert f'\nversion = "{__version__}"\n' in ALIAS
    assert f'dependencies = ["schedulemesh-core=={__version__}"]' in ALIAS


def test_both_distributions_need_the_same_python():
    line = re.compile(r"^requires-python = .*$", re.MULTILINE)
    assert line.findall(ALIAS) == line.findall(CORE)


def test_the_alias_distribution_has_no_modules():
    assert list((ROOT / "packaging" / "schedulemesh").rglob("*.py")) == []


@pytest.mark.parametrize("distribution", ["client", "schedulemesh"])
def test_each_distribution_has_the_license(distribution):
    """setuptools puts it into the wheel; a file above the project's folder it would not find."""
    license_text = (ROOT / "LICENSE").read_bytes()
    assert (ROOT / "packaging" / distribution / "LICENSE").read_bytes() == license_text


CLIENT = (ROOT / "packaging" / "client" / "pyproject.toml").read_text(encoding="utf-8")


def test_the_wheel_has_every_file_that_is_no_module():
    """Such as the templates of the page; READMEs of packages are for those who read the source."""
    section = CORE.partition("[tool.setuptools.package-data]\n")[2].partition("\n\n")[0]
    patterns = [
        "/".join((*package.strip('"').split("."), pattern))
        for package, _, listed in (line.partition(" = ") for line in section.splitlines())
        for pattern in re.findall(r'"([^"]+)"', listed)
    ]
    packed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    files = {path for path in (ROOT / "schedulemesh").rglob("*") if path.is_file()}
    others = {p for p in files if p.suffix not in (".py", ".pyc") and p.name != "README.md"}
    assert others == packed
    assert ROOT / "schedulemesh/server/page/templates/base.html" in packed


def dependencies(text):
    """The requirements of a distribution."""
    block = re.search(r"^dependencies = \[.*?\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r'"([^"]+)"', block[1]))


def test_the_client_is_of_the_same_version_and_its_requirements_are_those_of_core():
    assert f'\nversion = "{__version__}"\n' in CLIENT
    assert dependencies(CLIENT) < dependencies(CORE)
    line = re.compile(r"^(?:requires-python|schedulemesh) = .*$", re.MULTILINE)
    assert line.findall(CLIENT) == line.findall(CORE)
    assert not any(need.startswith("ray") for need in dependencies(CLIENT))
