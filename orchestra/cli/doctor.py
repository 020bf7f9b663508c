"""``orchestra doctor``: whether everything is in place, and what to do where it is not.

Each check is a function of its own that returns findings; none changes anything, and no key is ever shown.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestra.cli.doctor_engines import check_engines
from orchestra.cli.finding import Finding
from orchestra.cli.price_gaps import price_gaps
from orchestra.cli.settings import DEFAULT_CONFIG, cannot_be_made, find_settings, shown
from orchestra.errors import ConfigError
from orchestra.extras import pip_install

if TYPE_CHECKING:
    from orchestra.config import Config

__all__ = ["doctor", "examine"]

DISTRIBUTION = "orchestra-llm"
OLDEST_PYTHON = (3, 11)
ENOUGH_DISK = 1 << 30


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The settings to check. Default: orchestra.toml, if there is one."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check the content of cached models (SHA-256).")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not try whether the providers can be reached.")
    ] = False,
) -> None:
    """Check Python, packages, GPU, disk, models, settings, connections and keys, and say what to do.

    Of a provider it is tried whether its host takes a connection: no key and no request is sent there.

    Exit code 1 where something that your settings need does not work.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    findings = list(examine(config, deep=deep, offline=offline))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")  # a path that is cut cannot be used
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    for finding in findings:
        table.add_row(Text(f"{finding.state:4}", styles[finding.state]), finding.name, finding.detail)
        if finding.remedy:
            table.add_row("", "", Text.assemble(("->", "bold"), " ", finding.remedy))
    Console(highlight=False, markup=False).print(table)  # a path or an extra in brackets is no markup
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(1)


def examine(path: Path | None = None, *, deep: bool = False, offline: bool = False) -> Iterator[Finding]:
    """Yield what every check finds, for the settings in ``path`` (default: orchestra.toml, if there is one).

    ``offline``: the network is left alone.
    """
    from orchestra.cli.doctor_connections import check_connections
    from orchestra.config import default_config

    yield check_python(sys.version_info[:3])
    config, finding = check_config(path)
    yield finding
    # where the settings cannot be read, nothing is known of the models, keys and store that they name
    needs_engine = config is not None and bool(config.local)
    yield from check_packages(needs_engine=needs_engine)
    if importlib.util.find_spec("torch") is not None:
        yield from check_torch()
    yield check_disk(Path.cwd())
    if config is not None:
        yield from check_metrics(config)
        yield from check_models(config, deep=deep)
        yield from check_engines(config)
        if not offline and config is not default_config():
            yield from check_connections(config.providers)
        yield from check_keys(config)
        yield from check_prices(config)
        yield check_store(Path(config.bulk.store))
        if (shared := config.budget.sqlite_path) is not None:
            yield check_store(shared, "budget file", "[budget] backend")


def check_python(running: tuple[int, ...]) -> Finding:
    shown = ".".join(map(str, running))
    if running < OLDEST_PYTHON:
        return Finding("Python", "fail", shown, "install Python 3.11 or newer and make a new virtual environment")
    return Finding("Python", "ok", f"{shown} ({sys.executable})")


def check_config(path: Path | None) -> tuple[Config | None, Finding]:
    """Return the settings, or None where they are missing or invalid."""
    file = path or DEFAULT_CONFIG
    try:
        config, origin = find_settings(path)
    except ConfigError as error:
        if not os.path.exists(file):
            return None, Finding(
                "settings", "fail", f"{file}: no such file", "name a file that exists in --config"
            )
        return None, Finding("settings", "fail", str(error), f"correct {file}")
    if not (config.providers or config.local):
        return config, Finding(
            "settings", "warn", f"{origin} names no provider and no model", "see what `orchestra init` writes"
        )
    return config, Finding("settings", "ok", origin)


def check_packages(*, needs_engine: bool) -> Iterator[Finding]:
    """One finding for the core and each extra that a user may want, from the distribution's own metadata."""
    try:
        wanted = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        yield Finding("packages", "fail", f"{DISTRIBUTION} is not installed", "pip install . in its folder")
        return
    for extra, name, lacking in (
        ("", "core", "fail"),
        ("local", "engine", "fail" if needs_engine else "warn"),
        ("plot", "plots", "warn"),
    ):
        missing = {name: one for name, one in _packages_of(wanted, extra).items() if not _installed(name)}
        if missing:
            remedy = pip_install(missing.values())
            state: Literal["warn", "fail"] = "fail" if lacking == "fail" else "warn"
            yield Finding(f"packages: {name}", state, "missing: " + ", ".join(missing), remedy)
        else:
            yield Finding(f"packages: {name}", "ok", "all there")


def _packages_of(wanted: list[str], extra: str) -> dict[str, str]:
    """Return what the distribution requires for ``extra``, by its name; ``""`` means always."""
    packages = {}
    for requirement in wanted:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        marker = re.search(r"extra\s*==\s*[\"']([^\"']+)", requirement)
        if name and (marker.group(1) if marker else "") == extra:
            packages[name.group()] = requirement.partition(";")[0].strip()
    return packages


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def check_torch() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch", "fail", f"does not load: {error}", "pip install --force-reinstall torch")
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    threads = torch.get_num_threads()
    detail = f"{torch.__version__}, {threads} of {cores} cores"
    if threads > cores:
        yield Finding(
            "torch", "warn", detail, f"more threads than cores slow it down: set OMP_NUM_THREADS={cores}"
        )
    else:
        yield Finding("torch", "ok", detail)
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        detail = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB"
    else:
        detail = "none found: the engine runs on the CPU, which suits small models"
    yield Finding("GPU", "ok", detail)


def check_disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:.1f} GiB free here"
    if free < ENOUGH_DISK:
        return Finding("disk", "warn", detail, "free some space: job stores and models may not fit")
    return Finding("disk", "ok", detail)


def check_metrics(config: Config) -> Iterator[Finding]:
    """Say where an exporter is asked for that is not installed: nothing runs with such settings."""
    from orchestra.observe.windows import check_installed

    try:
        check_installed(config)
    except ConfigError as error:
        detail, _, remedy = str(error).partition(": ")
        yield Finding("metrics", "fail", detail, remedy)


def check_models(config: Config, *, deep: bool) -> Iterator[Finding]:
    from orchestra.localengine.errors import ModelFileError
    from orchestra.localengine.weights import registry

    for weights in dict.fromkeys(section.weights for section in config.local.values()):
        name = f"model {weights}"
        if weights not in registry.KNOWN:
            path = Path(weights).expanduser()
            if path.is_file() or (path / "config.json").is_file():
                yield Finding(name, "ok", "a model of yours")
            else:
                known = ", ".join(sorted(registry.KNOWN))
                yield Finding(
                    name,
                    "fail",
                    "no such file, nor a known model",
                    f"name a .gguf file, a model's folder, or one of: {known}",
                )
            continue
        pull = f"orchestra model pull {weights}"
        try:
            path = registry.verify(weights) if deep else registry.resolve(weights)
        except ModelFileError as error:
            # the error names the same remedy at its end, for those who meet it elsewhere
            yield Finding(name, "fail", str(error).partition(f"run `{pull}")[0].rstrip(" :;,"), pull)
        else:
            yield Finding(name, "ok", f"{path}{' (content checked)' if deep else ''}")


def check_keys(config: Config) -> Iterator[Finding]:
    for name, provider in config.providers.items():
        if provider.api_key is None:
            yield Finding(f"key of {name}", "ok", "none set: the caller's own is used, towards its own host")
            continue
        try:
            provider.resolve_api_key()
        except ConfigError as error:
            yield Finding(f"key of {name}", "fail", str(error), "set it, or take the provider out of the routes")
        else:
            yield Finding(f"key of {name}", "ok", "present")


def check_prices(config: Config) -> Iterator[Finding]:
    """Name the routes that nothing can be sent to: dollars are limited there, and no price is known."""
    for entry in config.models.values():
        for route in entry.routes:
            for gap in price_gaps(config, route):
                yield Finding("prices", "fail", gap.detail, gap.remedy)


def check_store(store: Path, name: str = "job store", setting: str = "[bulk] store") -> Finding:
    """Whether an SQLite file can be written: itself where it exists, else the nearest folder that does."""
    if os.path.exists(store):
        try:
            connection = sqlite3.connect(f"file:{store}?mode=rw", uri=True, timeout=1)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()
            finally:
                connection.close()
        except sqlite3.Error as error:
            if "locked" in str(error):
                return Finding(name, "ok", f"{store}: in use just now")
            return Finding(name, "fail", f"{store}: {error}", f"move the file away, or name another in {setting}")
        return Finding(name, "ok", shown(store))
    if (reason := cannot_be_made(store)) is not None:
        return Finding(name, "fail", f"{shown(store)} cannot be made: {reason}", f"name another in {setting}")
    return Finding(name, "ok", f"{shown(store)} (made when it is first needed)")
