"""The file that `orchestra init` writes is right, and so is every example in its comments."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from orchestra import config as settings
from orchestra.cli.init import TEMPLATE
from orchestra.cli.main import app
from orchestra.config import load_config, parse_config
from orchestra.errors import ConfigError

EXAMPLE = re.compile(r"^# (\[{1,2}[\w.]+\]{1,2}|\w+ = .*)$")

SECTIONS = {
    "models": settings.ModelConfig,
    "local": settings.LocalConfig,
    "providers": settings.ProviderConfig,
    "limits": settings.LimitsConfig,
    "prices": settings.PriceConfig,
    "batch": settings.BatchConfig,
    "service_tiers": settings.ServiceTiersConfig,
    "traffic": settings.TrafficConfig,
    "budget": settings.BudgetConfig,
    "bulk": settings.BulkConfig,
    "network": settings.NetworkConfig,
    "observe": settings.ObserveConfig,
}


def with_examples() -> list[str]:
    """Return the template's settings with every example made real, of alternatives the last one."""
    lines: list[str] = []
    keys: dict[str, int] = {}
    for line in TEMPLATE.splitlines():
        example = EXAMPLE.match(line)
        text = example.group(1) if example else line
        if text.startswith("["):
            keys = {}
        elif setting := re.match(r"(\w+) = ", text):
            if setting.group(1) in keys:
                lines[keys[setting.group(1)]] = ""
            keys[setting.group(1)] = len(lines)
        lines.append(text)
    return lines


def test_it_works_as_it_is(tmp_path):
    path = tmp_path / "orchestra.toml"
    assert CliRunner().invoke(app, ["init", str(path)]).exit_code == 0
    config = load_config(path)
    assert config.models["fast"].routes == ("local/smollm2",)
    assert config.providers == {}


def test_it_says_the_defaults():
    written = tomllib.loads(TEMPLATE)
    defaults = parse_config({})
    for section in ("traffic", "budget", "bulk", "network", "observe"):
        assert written[section] == getattr(defaults, section).model_dump(exclude_none=True)


def test_every_example_is_right():
    data = tomllib.loads("\n".join(with_examples()))
    config = parse_config(data)
    assert config.models["fast"].routes == ("openai/gpt-5-mini", "local/smollm2")
    assert config.providers["openai"].limits[0].requests_per_minute == 600


def test_every_example_is_right_by_itself():
    """One example made real, all else as it is written."""
    tried = 0
    lines = TEMPLATE.splitlines()
    for at, line in enumerate(lines):
        example = EXAMPLE.match(line)
        section = next((above for above in reversed(lines[:at]) if above.startswith(("[", "# ["))), "")
        if not example or example.group(1).startswith("[") or section.startswith("# "):
            continue
        key = example.group(1).partition(" ")[0]
        begin = lines.index(section)
        changed = [
            other
            for place, other in enumerate(lines)
            if not (begin < place < at and other.startswith(f"{key} = "))
        ]
        changed[changed.index(line)] = example.group(1)
        text = "\n".join(changed)
        if "openai/" in example.group(1):
            text += '\n[providers.openai]\nkind = "openai"\n'
        parse_config(tomllib.loads(text))
        tried += 1
    assert tried >= 5


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_is_explained(name):
    """Each key of the settings stands in the template, with a comment above it."""
    section: type[BaseModel] = SECTIONS[name]
    data: Any = tomllib.loads("\n".join(with_examples()))
    if name in {"limits", "prices"}:
        found = data["providers"]["openai"][name][0]
    elif name in {"batch", "service_tiers"}:
        found = data["providers"]["openai"][name]
    elif name in {"models", "local", "providers"}:
        (found,) = data[name].values()
    else:
        found = data[name]
    assert set(found) == set(section.model_fields) | ({"limits"} if name == "providers" else set())


def test_the_batch_examples_say_the_defaults():
    data: Any = tomllib.loads("\n".join(with_examples()))
    said = data["providers"]["openai"]["batch"]
    defaults = settings.BatchConfig().model_dump(exclude_none=True)
    assert {key: said[key] for key in defaults} == defaults


def test_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "orchestra.toml"
    path.write_text("mine")
    refused = CliRunner().invoke(app, ["init", str(path)])
    assert refused.exit_code != 0
    assert "--force" in str(refused.exception)
    assert path.read_text() == "mine"
    assert CliRunner().invoke(app, ["init", str(path), "--force"]).exit_code == 0
    assert path.read_text() == TEMPLATE


def test_a_folder_that_is_not_there(tmp_path):
    refused = CliRunner().invoke(app, ["init", str(tmp_path / "no" / "orchestra.toml")])
    assert "cannot be written" in str(refused.exception)


def test_a_folder_is_no_file(tmp_path):
    for force in ([], ["--force"]):
        done = CliRunner().invoke(app, ["init", str(tmp_path), *force])
        assert isinstance(done.exception, ConfigError)
        assert "is a folder" in str(done.exception)
