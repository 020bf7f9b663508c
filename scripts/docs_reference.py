"""The pages of the reference that are made from the code: settings, errors, events and metrics, the command line.

    python scripts/docs_reference.py

writes them into docs/reference/. A test compares them with the code, so what is changed there is told here. Pages
on classes need no making: mkdocstrings reads their docstrings when the site is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

__all__ = ["PAGES", "made"]

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_MADE = "<!-- Made by `make docs-reference`: change the code, not this page. -->\n\n"

Schema = Mapping[str, Any]


def made(page: str) -> str:
    """Return what a page of the reference says, by its name."""
    return _MADE + PAGES[page]().rstrip() + "\n"


# --- settings ---


def settings() -> str:
    """Return the page on orchestra.toml."""
    from orchestra.cli.init import TEMPLATE
    from orchestra.config import Config
    from orchestra.kinds import KINDS

    schema = Config.model_json_schema()
    head = f"""# Settings

`orchestra.toml`, or a dict with the same keys for `Orchestra.from_config`. `orchestra init` writes the file, with
what stands [at the end of this page](#as-orchestra-init-writes-it); `orchestra doctor` checks it. A key that is
wrong or misspelt is an error that names the place and what was meant. *none* as a default means that nothing is
set; what follows from that is said above the table.

`NAME` is yours: of a model, an account or an engine. The kinds of providers: {_listed(KINDS)}.
"""
    sections = "\n".join(_sections(schema, schema, ""))
    return f"{head}\n{sections}\n## As `orchestra init` writes it\n\n```toml\n{TEMPLATE}```\n"


def _sections(root: Schema, section: Schema, path: str) -> Iterator[str]:
    """Yield each section of the settings below ``path``, an outer one before those inside it."""
    for key, value in section["properties"].items():
        inner, brackets = _inner(root, value)
        if inner is None:
            continue
        place = f"{path}.{key}" if path else key
        place = f"{place}.NAME" if brackets == "{}" else place
        title = f"[[{place}]]" if brackets == "[]" else f"[{place}]"
        yield f"## `{title}`\n\n{_prose(inner['description'])}\n\n{_keys(root, inner)}"
        yield from _sections(root, inner, place)


def _inner(root: Schema, value: Schema) -> tuple[Schema | None, str]:
    """Return the section that a key holds, None where it holds none; and whether as several, or by names."""
    for holder, brackets in ((value, ""), (value.get("items"), "[]"), (value.get("additionalProperties"), "{}")):
        if isinstance(holder, dict) and "$ref" in holder:
            return root["$defs"][holder["$ref"].rpartition("/")[2]], brackets
    return None, ""


def _keys(root: Schema, section: Schema) -> str:
    required = section.get("required", ())
    rows = [
        f"| `{key}` | {_kind(value)} | {'required' if key in required else _default(value)} |"
        for key, value in section["properties"].items()
        if _inner(root, value)[0] is None
    ]
    return "| key | what it holds | default |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _kind(value: Schema) -> str:
    """Say in words what a key may hold."""
    if "anyOf" in value:
        return " or ".join(_kind(one) for one in value["anyOf"] if one.get("type") != "null")
    if "const" in value:
        return f'`"{value["const"]}"`'
    if "enum" in value:
        return ", ".join(f'`"{one}"`' for one in value["enum"])
    match value["type"]:
        case "boolean":
            return "`true` or `false`"
        case "integer" | "number" as name:
            return ("whole number" if name == "integer" else "number") + _range(value)
        case "array":
            return f"list of {_kind(value['items'])}s"
        case "object":
            return f"table of {_kind(value['additionalProperties'])}"
        case _:
            return "text"


def _range(value: Schema) -> str:
    least, most = value.get("minimum"), value.get("maximum")
    words = f" above {value['exclusiveMinimum']:g}" if "exclusiveMinimum" in value else ""
    words += "" if least is None else f" from {least:g}"
    return words if most is None or most >= 1e9 else f"{words} to {most:,.12g}"


def _default(value: Schema) -> str:
    match value.get("default"):
        case None | "" | {} | []:
            return "*none*"
        case bool(flag):
            return f"`{str(flag).lower()}`"
        case str(text):
            return f'`"{text}"`'
        case [*parts]:
            return "`[" + ", ".join(f'"{part}"' for part in parts) + "]`"
        case number:
            return f"`{number}`"


# --- errors ---


def errors() -> str:
    """Return the page on exceptions, and on what SDKs get instead of them."""
    from orchestra.transports.synthetic import FORMS

    rows = "\n".join(
        f"| [`{error.__name__}`][orchestra.errors.{error.__name__}] | {status} | `{code}` |"
        for error, status, code in FORMS
    )
    return f"""# Errors

`orc.chat`, `orc.stream`, `orc.embed`, `orc.map` and `orc.submit` raise the exceptions below. Under an SDK the
errors are the SDK's own: what Orchestra itself refuses reaches it as an HTTP response in the form of its wire, and
what a provider answered passes through as it came.

## What an SDK gets

Each has `x-should-retry: false`, and `Retry-After` where the wait is known. The first row that matches counts. An
error that is `timed_out` has the status 504, and most SDKs make of it
[their own timeout error](../how-to/under-your-sdk.md#what-can-go-wrong).

| error | status | code |
|---|---|---|
{rows}

## The exceptions

::: orchestra.errors
    options:
      heading_level: 3
      show_root_heading: false
      show_root_toc_entry: false
"""


# --- events and metrics ---


def events() -> str:
    """Return the page on what is told while things happen."""
    from orchestra.observe.instruments import INSTRUMENTS

    rows = "\n".join(
        f"| `{one.name}` | {one.kind} | `{one.unit}` | {one.description} | {_listed(one.labels)} |"
        for one in INSTRUMENTS
    )
    return f"""# Events and metrics

Nothing here ever holds a key, a prompt or an answer. How to listen is in [Watch it](../how-to/watch.md).

## Of calls

::: orchestra.observe.events
    options:
      heading_level: 3
      show_root_heading: false
      show_root_toc_entry: false
      members: [Event, EventBus]

### The kinds

| kind | what happened |
|---|---|
{_kinds()}

## Kept in a file

::: orchestra.observe.event_log.EventLog

## Of an engine

`(await orc.engine("smollm2")).events.subscribe(...)` hears them, or `LocalEngine.events` without the client.

::: orchestra.localengine.events
    options:
      heading_level: 3
      show_root_heading: false
      show_root_toc_entry: false

## Metrics

Names, units and buckets that begin with `gen_ai.` are those of OpenTelemetry's conventions; the others are ours.
Prometheus writes dots as underscores, and appends the unit. A `total` is a sum that somebody else keeps. Labels
have bounded values.

| name | kind | unit | what it tells | labels |
|---|---|---|---|---|
{rows}
"""


def _kinds() -> str:
    """Return the kinds of events with their meanings, which stand beside them in the source."""
    from orchestra.observe import events as module

    told = re.findall(r'^    "(\w+)",  # (.+)$', inspect.getsource(module), flags=re.M)
    assert [kind for kind, _ in told] == [*get_args(module.EventKind)], "each kind has its meaning beside it"
    return "\n".join(f"| `{kind}` | {meaning} |" for kind, meaning in told)


# --- the command line ---


def command_line() -> str:
    """Return the page on the commands, from their own help."""
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from orchestra.cli.main import app

    command = get_command(app)
    context = command.make_context("orchestra", [], resilient_parsing=True)
    text = get_docs_for_click(obj=command, ctx=context, name="orchestra", title="Command line")
    text = re.sub(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n", "", text)  # their help, cut short: it follows in full
    text = re.sub(r"```console\n\$ (.*?)```\n", lambda usage: _indented(usage[1]), text, flags=re.S)
    return re.sub(r"(?<=\n\n)  (?! ).+(?:\n  .+)*", lambda block: _indented(block[0]), text)


def _indented(text: str) -> str:
    """Return lines as a block of code that is not fenced: they are forms, and no commands to run."""
    return "".join(f"    {line.strip()}\n" for line in text.strip().splitlines())


# --- words ---


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown: what stands between two backticks on each side is code."""
    return docstring.replace("``", "`")


def _listed(words: Any) -> str:
    return ", ".join(f"`{word}`" for word in words)


PAGES = {"cli.md": command_line, "config.md": settings, "errors.md": errors, "events.md": events}
"""What makes each page, by its name."""


def main() -> None:
    for page in PAGES:
        (FOLDER / page).write_text(made(page), encoding="utf-8")


if __name__ == "__main__":
    main()
