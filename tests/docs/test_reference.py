"""The reference is complete and true: calls and signatures, policy, codes, errors, commands, modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from typing import get_type_hints

import pytest
from msgspec import UNSET

from schedulemesh import errors
from schedulemesh.client.task_fields import DEFAULTS, SubmitFields
from schedulemesh.config.policy import VICTIM_ORDERS, PreemptionPolicy
from schedulemesh.config.queueing import ORDERS
from schedulemesh.core.agent.agent_actor import AgentActor
from schedulemesh.core.agent.metrics_agent import MetricsReportingAgent
from schedulemesh.core.client.head import ScheduleMeshHead
from schedulemesh.core.client.scheduler import RayScheduler
from schedulemesh.domain.task import FIELDS, INTERNAL, TaskState
from schedulemesh.domain.task_fields import TaskField
from schedulemesh.engine.state.scoring import BUILT_IN
from schedulemesh.simple import SimpleScheduler
from tests.docs.documents import ROOT, check_generated, headings, pages, section

API = ROOT / "docs" / "api" / "schedule_mesh.md"
GUIDE = ROOT / "docs" / "preemption_guide.md"
POLICY = ROOT / "docs" / "preemption_policy.md"
CLASSES = {
    "SimpleScheduler": SimpleScheduler,
    "RayScheduler": RayScheduler,
    "ScheduleMeshHead": ScheduleMeshHead,
}


def codes_in(text: str) -> set[str]:
    """The words that stand in `code`, whole or as parts of a list of words."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return {word for span in spans for word in re.findall(r"\w+", span)}


COMMAND = "REWRITE_DOCS=1 .venv/bin/python -m pytest tests/docs/test_reference.py"


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_is_described(name):
    public = {n for n, _ in inspect.getmembers(CLASSES[name]) if not n.startswith("_")}
    missing = sorted(public - codes_in(section(API, name)))
    if os.environ.get("REWRITE_DOCS"):
        # What SimpleScheduler has of RayScheduler is in the list of the calls of both.
        rest = "".join(map(entry, missing)) if name == "RayScheduler" else ""
        text, page = section(API, name), API.read_text("utf-8")
        API.write_text(page.replace(text, f"{text.rstrip()}\n\n{rest}"), encoding="utf-8")
    elif missing:
        pytest.fail(f"{API.name} does not describe {', '.join(missing)} of {name}; run {COMMAND}")


def entry(name: str) -> str:
    """What the page says of a call of RayScheduler that a person has not described further."""
    call = getattr(RayScheduler, name)
    return f"#### `{name}{written(call)}`\n\n{inspect.getdoc(call)}\n\n".replace("``", "`")


def written(call) -> str:
    """The parameters of a call as the page writes them."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return str(inspect.Signature(parameters)).replace("'", '"')


def test_the_calls_that_both_schedulers_have_are_listed():
    """In the order of the page."""
    own = re.findall(r"^#### `(?:\w+\.)?(\w+)\(", section(API, "SimpleScheduler"), re.MULTILINE)
    public = {n for n, _ in inspect.getmembers(RayScheduler) if not n.startswith("_")}
    told = re.findall(r"^#### `(?:\w+\.)?(\w+)\(", section(API, "RayScheduler"), re.MULTILINE)
    ordered = [n for n in (*told, *sorted(public)) if n in public and n not in own]
    *names, last = (f"`{n}`" for n in dict.fromkeys(ordered))
    text = f"It has every call of `RayScheduler`: {', '.join(names)} and {last}. The following are its own, "
    check_generated(API, "calls of both", f"{text}or do more than those.\n", COMMAND)


@pytest.mark.parametrize("cls", [AgentActor, MetricsReportingAgent])
def test_every_public_method_of_agents_is_described(cls):
    public = {n for n, _ in inspect.getmembers(cls) if not n.startswith("_")}
    assert public - codes_in(section(API, "Classes for agents")) == set()


@pytest.mark.parametrize("name", CLASSES)
def test_every_signature_is_as_described(name):
    told = re.findall(r"^#### `(.+?\))`$", section(API, name), re.MULTILINE)
    assert told
    wrong = [text for text in told if described(text) != actual(name, text)]
    if wrong and os.environ.get("REWRITE_DOCS"):
        page = API.read_text("utf-8")
        for text in wrong:
            current = text.partition("(")[0] + written(function_of(name, text))
            page = page.replace(f"#### `{text}`\n", f"#### `{current}`\n")
        API.write_text(page, encoding="utf-8")
    elif wrong:
        pytest.fail(f"{API.name} has other parameters of {wrong[0]}; run {COMMAND}")


def without_class(text: str) -> str:
    """A described call without the class before its name."""
    return re.sub(r"^\w+\.", "", text)


def described(text: str) -> list[tuple[str, str]]:
    """Parameters of a described call: kind and name, with the default as it is written. ``**fields`` stands
    for the keyword arguments of every submission.
    """
    plain = without_class(text)
    function = ast.parse(f"def {plain}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    listed = list(_parameters(inspect.signature(_compiled(plain))))
    if listed[-1:] == [("VAR_KEYWORD fields", "")]:
        listed[-1:] = [
            (f"KEYWORD_ONLY {name}", repr(DEFAULTS.get(name)))
            for name in get_type_hints(SubmitFields)
        ]
    return listed


def _compiled(plain: str):
    names: dict = {"UNSET": UNSET}
    exec(f"def {plain}: ...", names)
    return names[plain.partition("(")[0]]


def actual(class_name: str, text: str) -> list[tuple[str, str]]:
    signature = inspect.signature(function_of(class_name, text))
    return list(_parameters(signature, skip=("self", "cls")))


def function_of(class_name: str, text: str):
    """The function of a described call."""
    cls = CLASSES[class_name]
    called = without_class(text).partition("(")[0]
    function = cls.__init__ if called == class_name else inspect.getattr_static(cls, called)
    return getattr(function, "__func__", function)


def _parameters(
    signature: inspect.Signature, skip: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    for name, parameter in signature.parameters.items():
        if name not in skip:
            default = "" if parameter.default is parameter.empty else repr(parameter.default)
            yield f"{parameter.kind.name} {name}", default


def policy_fields(page, heading):
    """The rows of a table of the policy's fields: what follows each name."""
    return dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", section(page, heading), re.MULTILINE))


def test_the_guide_says_of_a_field_what_its_page_says():
    rows = policy_fields(GUIDE, "Change the policy")
    assert len(rows) > 8
    assert rows.items() <= policy_fields(POLICY, "Fields").items()


def test_every_field_of_the_policy_is_on_its_page_with_its_default():
    rows = policy_fields(POLICY, "Fields")
    assert set(rows) == set(PreemptionPolicy.__struct_fields__)
    for name, row in rows.items():
        value = getattr(PreemptionPolicy(), name)
        told = row.partition(" | ")[0].removesuffix(" s")
        assert (
            told in ("none", str(value))
            if not isinstance(value, bool | float)
            else told == str(value) or (float(told) == value)
        ), name


@pytest.mark.parametrize(
    ("page", "english", "chinese", "names"),
    [
        ("plugins.md", "Built-in strategies", "内置策略", BUILT_IN),
        ("plugins.md", "The order of victims", "抢占的次序", VICTIM_ORDERS),
        ("queue_order.md", "Orders", "各种顺序", ORDERS),
    ],
)
def test_every_strategy_and_order_has_a_row_in_both_languages(page, english, chinese, names):
    docs = ROOT / "docs"
    for text in (section(docs / page, english), section(docs / "zh" / page, chinese)):
        assert set(names) <= set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def declared(field: TaskField) -> str:
    """What a table says of a field that a person has not described further."""
    text = "; ".join(filter(None, (field.means, field.absent))).replace("``", "`")
    return text[:1].lower() + text[1:]


def test_every_field_of_a_task_is_described():
    table = section(API, "Fields of a task")
    described = re.findall(r"^\| `(\w+)` \|.*\n", table, re.MULTILINE)
    missing = [name for name in FIELDS if name not in {*described, *INTERNAL}]
    assert set(described) <= set(FIELDS) - INTERNAL
    if missing and os.environ.get("REWRITE_DOCS"):
        last = re.findall(r"^\| `\w+` \|.*\n", table, re.MULTILINE)[-1]
        rows = "".join(f"| `{name}` | {declared(FIELDS[name])} |\n" for name in missing)
        API.write_text(API.read_text("utf-8").replace(last, last + rows), encoding="utf-8")
    elif missing:
        pytest.fail(
            f"{API.name} has no row for the field {', '.join(missing)} of a task; run {COMMAND}"
        )


def test_every_field_of_a_task_state_is_described():
    fields = ", ".join(inspect.signature(TaskState).parameters)
    check_generated(API, "fields of TaskState", f"`TaskState` has `{fields}`.\n", COMMAND)


def test_every_error_is_described():
    public = {n for n, v in vars(errors).items() if inspect.isclass(v)}
    assert public - codes_in(section(API, "Errors")) == set()


def test_every_module_named_exists():
    name_in_code = re.compile(r"`((?:schedulemesh|examples)(?:\.\w+)+)`")
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in pages()
        for name in name_in_code.findall(page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert sorted(entry for entry in named if not exists(entry[1])) == []


def exists(name: str) -> bool:
    """Whether a dotted name leads to a module, or to something in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_file_named_in_the_design_exists():
    text = (ROOT / "docs" / "scheduleMesh_design.md").read_text("utf-8")
    packages = "core|runtime|protocol|engine|store|cli|domain|config|dispatch"
    named = set(re.findall(rf"`((?:{packages})/[\w/.]*|simple\.py)`", text))
    assert len(named) > 8
    assert [path for path in named if not (ROOT / "schedulemesh" / path).exists()] == []


def test_every_module_of_the_engine_is_on_its_page():
    engine = ROOT / "schedulemesh" / "engine"
    modules = {
        p.relative_to(engine).with_suffix("").as_posix()
        for p in engine.rglob("*.py")
        if p.stem != "__init__"
    }
    page = engine / "README.md"
    rows = re.findall(r"^\| (`[^|]*) \|", section(page, "Who does what"), re.MULTILINE)
    assert modules == {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_promised_name_is_documented():
    table = section(API, "Where the names of the documents are")
    for name in (
        "ScheduleMesh Manager",
        "Supervisor Actor",
        "ResourcePoolManagerActor",
        "PreemptionControllerActor",
        "PG Pool Manager",
        "Agent Manager",
        "Agent Actor",
        "Resource Registry",
        "MetricsReportingAgent",
    ):
        assert name in table, name


def test_headings_of_a_page_differ():
    for page in pages():
        texts = [text for level, text in headings(page) if level <= 3]
        assert page.name == "CHANGELOG.md" or len(texts) == len(set(texts)), page
