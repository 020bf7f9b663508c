"""What the doctor finds, and the remedy that it names."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestra.cli import doctor
from orchestra.cli.init import TEMPLATE
from orchestra.cli.main import app
from orchestra.config import parse_config

KEY = "sk-never-to-be-shown"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def find(findings, name):
    (finding,) = [finding for finding in findings if finding.name == name]
    return finding


def test_old_python_fails():
    assert doctor.check_python((3, 10, 4)).state == "fail"
    assert doctor.check_python((3, 11, 0)).state == "ok"


def test_embedded_defaults_and_a_missing_model():
    findings = list(doctor.examine())
    assert "embedded defaults" in find(findings, "settings").detail
    model = find(findings, "model smollm2-135m")
    assert model.state == "fail"
    assert model.remedy == "orchestra model pull smollm2-135m"


def test_every_failure_names_a_remedy(tmp_path):
    (tmp_path / "orchestra.toml").write_text("[models.fast]\nroute = ['local/x']\n")
    for finding in doctor.examine():
        assert (finding.state == "ok") == (finding.remedy == ""), finding


def test_a_misspelt_key_fails_and_exits_1(tmp_path):
    (tmp_path / "orchestra.toml").write_text(TEMPLATE.replace("weights", "weigths"))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "weigths" in done.stdout
    assert "did you mean 'weights'" in done.stdout


def test_another_file_is_named(tmp_path):
    finding = find(doctor.examine(tmp_path / "other.toml"), "settings")
    assert finding.state == "fail"
    assert "other.toml" in finding.detail
    assert "init" not in finding.detail + finding.remedy, "it would write over the file that is meant"


def test_nothing_is_said_of_settings_that_cannot_be_read(tmp_path):
    (tmp_path / "orchestra.toml").write_text("[models.fast]\nroute = ['local/x']\n")
    findings = list(doctor.examine())
    assert find(findings, "settings").remedy == "correct orchestra.toml"
    names = {finding.name for finding in findings}
    assert not any(name.startswith(("model ", "key of", "job store")) for name in names)
    assert find(findings, "packages: core").state == "ok"


def test_the_way_to_get_a_model_is_named_once(tmp_path):
    config = parse_config({"local": {"a": {"weights": "smollm2-135m"}, "b": {"weights": "smollm2-135m"}}})
    (finding,) = doctor.check_models(config, deep=False)
    assert finding.remedy == "orchestra model pull smollm2-135m"
    assert "pull" not in finding.detail
    assert finding.detail == "the model 'smollm2-135m' is not in the cache"


def test_a_long_path_is_wrapped_and_not_cut(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    name = "a" * 90 + ".gguf"
    (tmp_path / "orchestra.toml").write_text(f"[local.x]\nweights = '{name}'\n")
    done = CliRunner().invoke(app, ["doctor"])
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout
    assert done.stdout.count("a") >= 90


def test_keys_are_found_and_never_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("PRESENT", KEY)
    monkeypatch.delenv("ABSENT", raising=False)
    (tmp_path / "orchestra.toml").write_text(
        f"""
        [providers]
        a = {{ kind = "openai", api_key = "env:PRESENT" }}
        b = {{ kind = "openai", api_key = "env:ABSENT" }}
        c = {{ kind = "openai", api_key = "{KEY}" }}
        d = {{ kind = "openai" }}
        """
    )
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert KEY not in done.output
    findings = list(doctor.examine())
    assert find(findings, "key of a").detail == "present"
    assert "ABSENT is not set" in find(findings, "key of b").detail
    assert find(findings, "key of c").detail == "present"
    assert find(findings, "key of d").state == "ok"


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda package: package not in {"torch", "matplotlib"})
    findings = list(doctor.check_packages(needs_engine=True))
    assert find(findings, "packages: core").state == "ok"
    engine = find(findings, "packages: engine")
    assert engine.state == "fail"
    assert engine.detail == "missing: torch"
    assert engine.remedy == "pip install torch"
    assert find(findings, "packages: plots").state == "warn"
    assert find(doctor.check_packages(needs_engine=False), "packages: engine").state == "warn"


def test_dollars_without_a_price():
    limits = [{"models": ["gpt-*"], "usd_per_day": 1.0}]
    account = {"kind": "openai", "limits": limits, "prices": [{"models": ["gpt-a"], "input": 1.0, "output": 2.0}]}
    routes = {"routes": ["one/gpt-a", "one/gpt-b", "one/other"]}
    config = parse_config({"providers": {"one": account}, "models": {"fast": routes}})
    (finding,) = doctor.check_prices(config)
    assert (finding.state, finding.remedy) == ("fail", "add [[providers.one.prices]] for 'gpt-b'")
    assert "one/gpt-b" in finding.detail


def test_dollars_without_a_price_for_the_tier():
    prices = [{"input": 1.0, "output": 2.0, "tiers": {"flex": 0.5}}]
    tiers = {"interactive": "fast", "bulk": "flex"}
    account = {"kind": "openai", "limits": [{"usd_per_day": 1.0}], "prices": prices, "service_tiers": tiers}
    config = {"providers": {"one": account}, "models": {"fast": {"routes": ["one/gpt-a"]}}}
    (finding,) = doctor.check_prices(parse_config(config))
    assert finding.state == "fail"
    assert finding.detail.endswith("no price for 'fast': nothing interactive is sent")
    assert finding.remedy == "add tiers = { priority = FACTOR } to its [[providers.one.prices]]"
    prices[0]["tiers"] = {"priority": 2.0}
    assert list(doctor.check_prices(parse_config(config))) == []


def test_a_model_file_of_the_users_own(tmp_path):
    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    config = parse_config({"local": {"a": {"weights": "mine.gguf"}, "b": {"weights": "other.gguf"}}})
    findings = list(doctor.check_models(config, deep=False))
    assert find(findings, "model mine.gguf").state == "ok"
    assert find(findings, "model other.gguf").state == "fail"


@pytest.mark.model
def test_deep_reads_the_cached_model(tmp_path, model_path, monkeypatch):
    config = parse_config({"local": {"a": {"weights": "smollm2-135m"}}})
    (tmp_path / "cache" / "models").mkdir(parents=True)
    copy = tmp_path / "cache" / "models" / model_path.name
    content = bytearray(model_path.read_bytes())
    copy.write_bytes(content)
    assert find(doctor.check_models(config, deep=True), "model smollm2-135m").state == "ok"
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    assert find(doctor.check_models(config, deep=False), "model smollm2-135m").state == "ok"
    assert find(doctor.check_models(config, deep=True), "model smollm2-135m").state == "fail"


def test_the_store(tmp_path):
    store = tmp_path / "jobs" / "jobs.db"
    assert doctor.check_store(store).state == "ok"
    assert not store.parent.exists(), "the doctor makes nothing"
    store.parent.mkdir()
    store.write_text("not a database, but long enough to be looked at as one" * 20)
    assert doctor.check_store(store).state == "fail"
    store.unlink()
    connection = sqlite3.connect(store)
    connection.execute("CREATE TABLE t (x)")
    assert doctor.check_store(store).state == "ok"
    connection.execute("BEGIN EXCLUSIVE")
    assert "in use" in doctor.check_store(store).detail
    connection.close()
    (tmp_path / "file").write_text("")
    assert doctor.check_store(tmp_path / "file" / "jobs.db").state == "fail"


def test_little_disk(tmp_path, monkeypatch):
    usage = os.statvfs(tmp_path)
    assert usage.f_bavail > 0
    assert doctor.check_disk(tmp_path).state == "ok"
    monkeypatch.setattr(doctor, "ENOUGH_DISK", 1 << 62)
    assert doctor.check_disk(tmp_path).state == "warn"


def test_brackets_are_shown_as_they_are(tmp_path):
    (tmp_path / "orchestra.toml").write_text(
        "[local.x]\nweights = '/none/[/foo]/[bold]x.gguf'\n[bulk]\nstore = 'folder'\n"
    )
    (tmp_path / "folder").mkdir()
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1, done.exception
    assert "/none/[/foo]/[bold]x.gguf" in done.stdout
    assert "name another in [bulk]" in done.stdout


def test_the_budget_file_is_checked_where_there_is_one():
    Path("orchestra.toml").write_text('[budget]\nbackend = "sqlite:budget.db"\n')
    Path("budget.db").write_bytes(b"not a database " * 100)
    finding = find(doctor.examine(Path("orchestra.toml")), "budget file")
    assert finding.state == "fail"
    assert "[budget] backend" in finding.remedy
