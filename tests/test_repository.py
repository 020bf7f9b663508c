"""The repository's own rules: what every file has, and that the README tells the truth about the commands."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSES = ("orchestra", "localengine", "kernels", "policies")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LONGEST = 500


def sources() -> list[Path]:
    found = []
    for house in HOUSES:
        for path in sorted((ROOT / house).rglob("*.py")):
            if house == "orchestra" and path.relative_to(ROOT / house).parts[0] in HOUSES:
                continue
            found.append(path.relative_to(ROOT))
    return found


SOURCES = sources()


def import_name(folder: Path) -> str:
    return ".".join(folder.parts if folder.parts[0] == "orchestra" else ("orchestra", *folder.parts))


def test_every_package_folder_is_listed():
    """A folder left out of the list works in the checkout and is missing from the wheel."""
    folders = {import_name(path.parent) for path in SOURCES}
    assert sorted(folders) == sorted(PROJECT["tool"]["setuptools"]["packages"])


def test_every_package_folder_has_an_init():
    lacking = {path.parent for path in SOURCES if not (ROOT / path.parent / "__init__.py").is_file()}
    assert lacking == set()


@pytest.mark.parametrize("house", HOUSES[1:])
def test_the_links_show_the_other_houses(house):
    link = ROOT / "orchestra" / house
    assert link.is_symlink()
    assert link.resolve() == ROOT / house


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_module_form(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= LONGEST, f"{path} has {lines} lines: it holds more than one idea"
    if not text.strip():
        assert path.name == "__init__.py"
        return
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{path} has no docstring"
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    exports_nothing = len(tree.body) == 1 or path.name == "__main__.py"
    assert exports_nothing or "__all__" in assigned, f"{path} has no __all__"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documented_make_targets_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    named = set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^ *make ([a-z-]+)", text, flags=re.M))
    assert {"demo", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_linked_files_exist(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", ["README.md", "docs"])
def test_documented_commands_exist(document):
    """Commands in running text; those in blocks are run, or read by the command line: tests/docs/."""
    from typer.main import get_command

    from orchestra.cli.main import app

    pages = [ROOT / document] if document.endswith(".md") else sorted((ROOT / document).rglob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"(?:`|^)orchestra ([a-z]+)", text, flags=re.M))
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert named
    assert named <= commands


def test_constraints_pin_what_we_depend_on():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert "+" not in version, f"{line}: a local version is on no public index"
            pins[name] = version
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    # triton has no wheel for many machines, and no command of ours needs it
    wanted = [*project["dependencies"], *(need for extra in extras.keys() - {"gpu"} for need in extras[extra])]
    names = {re.match(r"[\w.-]+", requirement).group().lower().replace("_", "-") for requirement in wanted}
    assert names - {project["name"]} <= set(pins)
