"""Commands of a page that are not run: their form, and the names in them."""

from __future__ import annotations

import re
import shlex
import tomllib

from doc_pages import ROOT
from typer.core import TyperGroup
from typer.main import get_command

from orchestra.cli.main import app
from orchestra.testing.__main__ import _parser as stand_in_options


def check_command(words: list[str], place: str) -> None:
    """Check a command that is not run: its options by its own parser, its names by what there is.

    Raises AssertionError, or the parser's own error.
    """
    match words:
        case ["orchestra", *arguments]:
            parse_orchestra(arguments)
        case ["pip", "install", *needs]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            known = {name for extra in project["optional-dependencies"].values() for name in extra}
            for need in needs:
                ours = re.fullmatch(r"\.(?:\[([\w,-]+)\])?", need)
                wanted = set((ours[1] or "").split(",")) - {""} if ours else set()
                assert wanted <= project["optional-dependencies"].keys(), f"{place}: no extra {need}"
                assert ours or any(name.startswith(need) for name in known), f"{place}: {need} is not tested with"
        case ["make", target, *_]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{re.escape(target)}:", makefile, re.M), f"{place}: no target {target}"
        case ["python", "-m", "orchestra.testing", *options]:
            stand_in_options().parse_args(options)
        case ["python", program, *_]:
            assert (ROOT / program).is_file(), f"{place}: no program {program}"
        case _:
            raise AssertionError(f"{place}: no test knows how to run or check {shlex.join(words)!r}")


def parse_orchestra(arguments: list[str]) -> None:
    """Read a command line of ``orchestra`` without running it. Raises the parser's own error where it is wrong."""
    command = get_command(app)
    context = command.make_context("orchestra", list(arguments))
    while isinstance(command, TyperGroup):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)
