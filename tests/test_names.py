"""Names say what they hold: empty local names become fewer, and so do public classes that share a name.

``tests/names.txt`` lists what is left: for each module how many local names are among ``EMPTY``, and the
names that several public classes have. More than that fails; where there are fewer, ``REWRITE_NAMES=1``
shortens the list.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.sources import trees

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "names.txt"
#: Local names that do not say what they hold.
EMPTY = {
    "asked",
    "found",
    "given",
    "held",
    "kept",
    "known",
    "left",
    "mine",
    "own",
    "said",
    "told",
    "wanted",
    "whole",
}


def modules() -> dict[str, ast.Module]:
    return {path.relative_to(ROOT).as_posix(): tree for path, tree in trees().items()}


def local_names(tree: ast.Module) -> Iterator[str]:
    """Each name that a function gives to something, once for each function."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = function.args
            parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            stored = (
                node.id
                for node in ast.walk(function)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )
            yield from {*(parameter.arg for parameter in parameters), *stored}


def empty_names(tree: ast.Module) -> int:
    return sum(name in EMPTY for name in local_names(tree))


def shared_class_names(trees: dict[str, ast.Module]) -> dict[str, int]:
    """The names that several public classes of different modules have, and how many."""
    names = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in sorted(names.items()) if count > 1}


def what_is_left() -> dict[str, int]:
    trees = modules()
    empty = {module: count for module, tree in trees.items() if (count := empty_names(tree))}
    return empty | shared_class_names(trees)


def listed() -> dict[str, int]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def test_names_that_say_nothing_become_fewer():
    left = what_is_left()
    if os.environ.get("REWRITE_NAMES"):
        LIST.write_text("".join(f"{name} {count}\n" for name, count in left.items()), "utf-8")
    before = listed()
    more = {name: count for name, count in left.items() if count > before.get(name, 0)}
    assert not more, f"name what it holds, or the class so that its name is its own: {more}"
    fewer = {name: count for name, count in before.items() if count > left.get(name, 0)}
    assert not fewer, f"there are fewer now; run this with REWRITE_NAMES=1: {fewer}"


def test_names_are_counted():
    tree = ast.parse(
        "def f(given, *, node):\n"
        "    found = [own for own in given]\n"
        "    for found in found: pass\n"
        "class Found: given = 1\n"
        "f(lambda known: known)\n"
    )
    assert empty_names(tree) == 4
    assert shared_class_names({"a": tree, "b": tree}) == {"Found": 2}
