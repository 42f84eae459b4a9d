"""What the import contracts cannot see: what is loaded when, and how big the rooms are."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import PACKAGE, nodes, trees

MODULES = sorted(PACKAGE.rglob("*.py"))
PRIVATE_IN_RAY = ("ray._private.", "ray._raylet.", "ray.core.generated.")


def loads(module: str) -> set[str]:
    """The modules that are there after an import in a fresh process."""
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("schedulemesh", {"ray", "sqlalchemy", "msgspec"}),
        ("schedulemesh.engine.engine", {"ray", "sqlalchemy"}),
        ("schedulemesh.config.policy", {"ray", "sqlalchemy"}),
        ("schedulemesh.client.remote", {"ray", "sqlalchemy", "numpy", "schedulemesh.runtime"}),
        ("schedulemesh.core.agent.agent_actor", {"sqlalchemy", "rich", "typer"}),
        ("schedulemesh.core.agent.metrics_agent", {"sqlalchemy", "rich", "typer"}),
        ("schedulemesh.core.agent.host", {"sqlalchemy", "rich", "typer"}),
        ("schedulemesh.core.agent.user_workers", {"sqlalchemy", "rich", "typer"}),
        ("schedulemesh.store.sql", {"ray", "sqlalchemy"}),
        ("schedulemesh.runtime.supervisor", {"ray", "sqlalchemy"}),
        (
            "schedulemesh.core.backend.ray_backend",
            {"sqlalchemy", "grpc", "schedulemesh.core.agent.job_runner"},
        ),
        ("schedulemesh.sim.picture", {"ray", "sqlalchemy", "matplotlib"}),
        ("schedulemesh.cli.app", {"ray", "sqlalchemy", "numpy", "matplotlib"}),
    ],
)
def test_importing_loads_no_more_than_it_needs(module, without):
    assert not without & loads(module)


def test_the_runtime_loads_neither_ray_nor_core():
    paths = [path.relative_to(PACKAGE.parent) for path in (PACKAGE / "runtime").rglob("*.py")]
    modules = [".".join(path.with_suffix("").parts) for path in paths if path.stem != "__init__"]
    assert "schedulemesh.runtime.supervisor" in modules
    loaded = loads(", ".join(modules))
    assert {name for name in loaded if name.partition(".")[0] == "ray"} == set()
    assert {name for name in loaded if name.startswith("schedulemesh.core")} == set()


def test_the_runtime_never_says_any():
    """What users bring is ``object``, what the backend refers to is a ``Handle``."""
    vague = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}"
        for path in sorted((PACKAGE / "runtime").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    assert vague == []


def names(paths):
    return [str(path.relative_to(PACKAGE.parent)) for path in paths]


def test_every_module_says_what_it_is():
    silent = [path for path in MODULES if not ast.get_docstring(trees()[path])]
    assert names(silent) == []


def imports() -> dict[str, set[str]]:
    """The modules of the package that each of them imports: at its top, in a function or for types only."""
    by_name = {module_name(path): path for path in MODULES}
    return {name: imported(path, set(by_name)) - {name} for name, path in by_name.items()}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= submodules or {node.module or ""}
    return found & known


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in this order; empty: there is no cycle."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for following in sorted(graph[name]):
                if found := walk(following, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def test_no_module_imports_itself_through_others():
    graph = imports()
    assert len(graph["schedulemesh.engine.engine"]) > 10
    assert cycle(graph) == []


def test_a_cycle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_a_module_is_one_subject():
    long = [p for p in MODULES if len(p.read_text(encoding="utf-8").splitlines()) > 900]
    assert names(long) == []


def first_name(node: ast.expr) -> str:
    """The variable that a chain of attributes begins with; empty: it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def private_uses_of_ray(path: Path) -> bool:
    """Whether a module imports or reads what Ray does not publish."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and first_name(node) == "ray":
            modules = [ast.unparse(node)]
        else:
            continue
        if any(f"{module}.".startswith(PRIVATE_IN_RAY) for module in modules):
            return True
    return False


def test_private_parts_of_ray_are_used_in_few_places():
    """A new version of Ray is checked there."""
    users = {str(path.relative_to(PACKAGE)) for path in MODULES if private_uses_of_ray(path)}
    outside = {name for name in users if not name.startswith("core/backend/")}
    assert "core/backend/ray_internals.py" in users
    assert outside == {"core/agent/ray_process.py", "core/client/ray_cluster.py"}


def test_no_module_is_named_utils_or_helpers():
    banned = {"utils", "util", "common", "base", "helpers", "misc"}
    assert names([path for path in MODULES if path.stem in banned]) == []


def test_broad_handlers_say_why():
    """``except Exception`` only with a comment that says what becomes of it."""
    for path in MODULES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in nodes(path):
            if not isinstance(node, ast.ExceptHandler) or not isinstance(node.type, ast.Name):
                continue
            if node.type.id not in ("Exception", "BaseException"):
                continue
            line = lines[node.lineno - 1]
            raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            reason = line.replace("# noqa: BLE001", "")
            assert raises or "#" in reason, f"{path}:{node.lineno}: {line.strip()}"


#: Fields and variables that hold sentences for a person.
PROSE = {"error", "detail", "warning", "hint", "save_error", "message"}


def is_prose(node: ast.expr) -> bool:
    """Whether this is a message, or an exception's text."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("str", "repr") and len(node.args) == 1
    return (isinstance(node, ast.Attribute) and node.attr in PROSE) or (
        isinstance(node, ast.Name) and node.id in PROSE
    )


def branches_on_text(node: ast.AST) -> bool:
    """Whether a message is compared with a text, or searched for one."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        told = [s for s in sides if isinstance(s, ast.Constant) and isinstance(s.value, str)]
        return any(map(is_prose, sides)) and any(constant.value for constant in told)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in ("startswith", "endswith") and is_prose(node.func.value)


def test_nothing_branches_on_message_text():
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{node.lineno}: {ast.unparse(node)}"
        for path in MODULES
        for node in nodes(path)
        if branches_on_text(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "answered.error.startswith('cancel() did not')",
        "'in its creation task' in str(error)",
        "outcome.detail == 'already_gone'",
    ],
)
def test_a_branch_on_message_text_is_found(text):
    assert branches_on_text(ast.parse(text, mode="eval").body)


def annotations(package: str) -> list[tuple[str, ast.expr]]:
    """The annotations of all parameters and results of the functions of a package, and where they are."""
    found = []
    for path in sorted((PACKAGE / package).rglob("*.py")):
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            given = [a for a in ast.walk(node.args) if isinstance(a, ast.arg)]
            kinds = [*(a.annotation for a in given), node.returns]
            where = f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"
            found += [(where, kind) for kind in kinds if kind is not None]
    return found


def is_any(annotation: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(annotation))


@pytest.mark.parametrize(("package", "share"), [("core", 0.10), ("engine", 0.0)])
def test_signatures_say_what_they_take(package, share):
    """``Any`` stands in few signatures. Values of users have names of their own, in domain.user_data."""
    every = annotations(package)
    vague = [where for where, annotation in every if is_any(annotation)]
    assert len(every) > 500
    assert len(vague) <= share * len(every), vague
