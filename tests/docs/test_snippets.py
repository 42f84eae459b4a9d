"""Every Python block of the documents compiles, and names only what exists.

Those marked as runnable are run by tests/integration/test_examples.py.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from typing import Any

import pytest

from schedulemesh.config.policy import PreemptionPolicy
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.simple import SimpleScheduler, SimpleTaskSpec
from tests.docs.documents import ROOT, blocks, pages

#: What a name of a snippet stands for.
OBJECTS = {
    "scheduler": RayScheduler,
    "client": RayScheduler,
    "mesh": SimpleScheduler,
    "mesh.scheduler": RayScheduler,
    "head": ScheduleMeshHead,
    "RayScheduler": RayScheduler,
}
CLASSES = (RayScheduler, SimpleScheduler, SimpleTaskSpec, PreemptionPolicy, ScheduleMeshHead)
SNIPPETS = [b for page in pages() for b in blocks(page) if b.language == "python"]


@pytest.mark.parametrize("block", SNIPPETS, ids=str)
def test_snippets_use_only_existing_names(block):
    assert wrong_in(block.code) == []


def wrong_in(code: str) -> list[str]:
    """What is not as the package has it, in sentences."""
    wrong = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            wrong += _missing_imports(node)
        elif isinstance(node, ast.Call):
            wrong += _wrong_call(node)
    return wrong


def _missing_imports(node: ast.ImportFrom) -> list[str]:
    module_name = node.module or ""
    if module_name.partition(".")[0] not in ("schedulemesh", "examples"):
        return []
    return [
        f"{module_name} has no {a.name}" for a in node.names if not _offers(module_name, a.name)
    ]


def _offers(module_name: str, name: str) -> bool:
    """Whether a module has a name; of an adapter whose library is not installed, whether its source has."""
    try:
        module = importlib.import_module(module_name)
        return hasattr(module, name) or _is_module(f"{module_name}.{name}", module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("schedulemesh", "examples"):
            raise
    source = ROOT.joinpath(*module_name.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    defined = (ast.FunctionDef, ast.ClassDef)
    return name in {n.name for n in ast.parse(source).body if isinstance(n, defined)}


def _is_module(name: str, package: object) -> bool:
    return hasattr(package, "__path__") and importlib.util.find_spec(name) is not None


def _wrong_call(node: ast.Call) -> list[str]:
    called = ast.unparse(node.func)
    owner, _, method = called.rpartition(".")
    if called in {cls.__name__ for cls in CLASSES}:
        function: Any = next(cls for cls in CLASSES if cls.__name__ == called)
    elif owner in OBJECTS:
        function = getattr(OBJECTS[owner], method, None)
        if function is None:
            return [f"{OBJECTS[owner].__name__} has no {method}"]
    else:
        return []
    if any(isinstance(a, ast.Starred) for a in node.args) or any(
        k.arg is None for k in node.keywords
    ):
        return []
    given = {str(k.arg): None for k in node.keywords}
    positional: list[None] = [None] * len(node.args)
    if inspect.isfunction(function):
        positional.insert(0, None)
    try:
        inspect.signature(function).bind(*positional, **given)
    except TypeError as error:
        return [f"{called}: {error}"]
    unknown = set(given) - allowed(function)
    return [f"{called} takes no {name}" for name in sorted(unknown)]


def allowed(function: Any) -> set[str]:
    """The keyword arguments that a call may give, also where they are gathered as ``**``."""
    parameters = inspect.signature(function).parameters
    names = set(parameters)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        names |= {"preemption_aggressiveness", *PreemptionPolicy.__struct_fields__}
    return names


@pytest.mark.parametrize(
    "code",
    [
        "from schedulemesh.simple import NoSuchThing",
        "scheduler.no_such_call()",
        "scheduler.create_pool('p', resource={})",
        "mesh.submit(task_id='t', pool_name='p')",
        "mesh.configure_preemption(no_such_field=1)",
        "mesh.scheduler.complete_task()",
        "PreemptionPolicy(cancel_time=1)",
    ],
)
def test_a_name_that_does_not_exist_is_found(code):
    assert wrong_in(code)


def test_snippets_are_found():
    assert sum(block.runnable for block in SNIPPETS) >= 10
