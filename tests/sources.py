"""The modules of the package, parsed once for all tests that search them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "schedulemesh"


@cache
def trees() -> dict[Path, ast.Module]:
    """The syntax tree of every module, in the order of their paths; they are everybody's, so nobody changes
    them.
    """
    paths = sorted(PACKAGE.rglob("*.py"))
    was_enabled = gc.isenabled()
    gc.disable()  # nothing of a tree is garbage, and searching it takes longer than parsing
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    finally:
        if was_enabled:
            gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree, as ``ast.walk`` gives them."""
    return tuple(ast.walk(trees()[path]))
