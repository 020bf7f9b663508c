"""The house rules about who may import whom, read from the source itself."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSES = ("orchestra", "localengine", "kernels", "policies")

# What stands on which floor of orchestra/: each imports from its own floor and from below.
FLOORS = {
    "errors": 1,
    "durations": 1,
    "extras": 1,
    "tagging": 1,
    "kinds": 1,
    "lengths": 1,
    "config": 1,
    "clock": 1,
    "sqlite_wal": 1,
    "call": 1,
    "openai_types": 1,
    "testing": 1,
    "budget": 2,
    "providers": 2,
    "observe": 2,
    "plan": 2,
    "wire": 2,
    "local_route": 2,
    "dispatch": 3,
    "transports": 4,
    "batches": 4,
    "jobs": 4,
    "chat_stream": 4,
    "own_calls": 4,
    "client": 5,
    "bench": 5,
    "simulate": 5,
    "process_wide": 5,
    "cli": 6,
    "__main__": 7,
}

# The folders of a package: each imports from itself and those before it, what stands beside them from all.
FOLDERS = {
    "orchestra.bench": ("results", "load", "report"),
    "orchestra.jobs": ("ledger", "intake", "progress", "sending", "diversion", "awaited"),
    "orchestra.localengine": ("text", "models", "weights", "scheduling", "execution", "gpu", "service", "quality"),
}

# Modules beside the folders that these are built on.
GROUND: dict[str, set[str]] = {
    "orchestra.bench": set(),
    "orchestra.jobs": set(),
    "orchestra.localengine": {
        *(
            "capacity",
            "config",
            "errors",
            "events",
            "precision",
            "request",
            "sampling_params",
            "settled_config",
            "step",
            "step_record",
        ),
    },
}

# Houses, and packages from outside beside the standard library, that a house may import.
ALLOWED = {
    "policies": ({"policies"}, {"tenacity"}),
    "kernels": ({"kernels"}, {"torch", "triton", "numpy"}),
    "localengine": (
        {"localengine", "policies", "kernels"},
        {"torch", "numpy", "gguf", "safetensors", "tokenizers", "jinja2", "anyio", "llguidance"},
    ),
}


@dataclass(frozen=True)
class Import:
    """``importer`` and ``target`` are dotted module names. ``on_use`` is inside a function, or for types only."""

    importer: str
    target: str
    on_use: bool
    for_types: bool
    place: str


def modules() -> dict[str, Path]:
    """Return every module of ours by its import name."""
    found = {}
    for house in HOUSES:
        for path in (ROOT / house).rglob("*.py"):
            inside = path.relative_to(ROOT / house)
            # the links under orchestra/ show the other houses again
            if house == "orchestra" and inside.parts[0] in HOUSES:
                continue
            parts = ["orchestra", *([] if house == "orchestra" else [house]), *inside.with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(module: str) -> Iterator[Import]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def visit(node: ast.AST, on_use: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            targets: list[str] = []
            if isinstance(child, ast.Import):
                targets = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*above, base] if base else above)
                for alias in child.names:
                    full = f"{base}.{alias.name}"
                    targets.append(full if full in MODULES else base)
            for target in targets:
                place = f"{path.relative_to(ROOT)}:{child.lineno}"
                yield Import(module, target, on_use, for_types, f"{place} imports {target}")
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, on_use or guarded or function, for_types or guarded)

    return visit(ast.parse(path.read_text(encoding="utf-8")), False, False)


IMPORTS = [found for module in MODULES for found in imports_of(module)]


def house_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in HOUSES else "orchestra"


def is_ours(module: str) -> bool:
    return module == "orchestra" or module.startswith("orchestra.")


def test_all_houses_are_seen():
    assert {house_of(module) for module in MODULES} == set(HOUSES)
    assert len(IMPORTS) > 50


@pytest.mark.parametrize("house", sorted(ALLOWED))
def test_house_imports_only_what_it_may(house):
    ours, outside = ALLOWED[house]
    wrong = []
    for found in IMPORTS:
        if house_of(found.importer) != house:
            continue
        top = found.target.partition(".")[0]
        if is_ours(found.target):
            if house_of(found.target) not in ours:
                wrong.append(found.place)
        elif top not in sys.stdlib_module_names and top not in outside:
            wrong.append(found.place)
    assert wrong == []


def test_every_part_of_orchestra_has_a_floor():
    parts = {module.split(".")[1] for module in MODULES if house_of(module) == "orchestra" and "." in module}
    assert parts == set(FLOORS), "give each part of orchestra/ its floor in FLOORS, and take out what is gone"


def test_no_import_runs_upward():
    wrong = []
    for found in IMPORTS:
        if house_of(found.importer) != "orchestra" or not is_ours(found.target):
            continue
        if found.importer == "orchestra" or house_of(found.target) != "orchestra":
            continue
        if found.target == "orchestra":
            # the front door: only who stands on top may use it
            if FLOORS[found.importer.split(".")[1]] < FLOORS["cli"]:
                wrong.append(found.place)
            continue
        if FLOORS[found.target.split(".")[1]] > FLOORS[found.importer.split(".")[1]]:
            wrong.append(found.place)
    assert wrong == []


def test_no_import_runs_in_a_circle():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in IMPORTS:
        if found.target in MODULES and not found.for_types and found.target != found.importer:
            graph[found.importer].add(found.target)
    # a package's own front re-exports its modules, and loads them on use
    graph["orchestra"] = set()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("front", FOLDERS)
def test_the_folders_of_a_package_import_one_another_one_way(front: str):
    depth = front.count(".") + 1
    folders = {
        module.split(".")[depth]
        for module, path in MODULES.items()
        if module.startswith(f"{front}.") and path.name == "__init__.py"
    }
    assert folders == set(FOLDERS[front]), f"give each folder of {front} its place in FOLDERS"

    def place(module: str) -> int:
        name = module.split(".")[depth] if module != front else ""
        if name in GROUND[front]:
            return -1
        return FOLDERS[front].index(name) if name in folders else len(folders)

    within = [
        found
        for found in IMPORTS
        if found.importer.startswith(f"{front}.") and f"{found.target}.".startswith(f"{front}.")
    ]
    assert within
    assert [found.place for found in within if place(found.target) > place(found.importer)] == []


def test_the_engine_is_loaded_on_use_only():
    wrong = [
        found.place
        for found in IMPORTS
        if house_of(found.importer) == "orchestra" and house_of(found.target) == "localengine" and not found.on_use
    ]
    assert wrong == []


def test_the_planner_knows_neither_torch_nor_time():
    banned = {"torch", "time", "asyncio", "threading"}
    names = ("abandonment", "blocks", "draft", "plan", "schedulers", "state", "step_plan")
    pure = {f"orchestra.localengine.scheduling.{name}" for name in names}
    assert pure <= set(MODULES)
    assert [f.place for f in IMPORTS if f.importer in pure and f.target.partition(".")[0] in banned] == []
