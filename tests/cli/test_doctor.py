"""What the doctor finds, and the remedy that it names."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestra.cli import doctor
from orchestra.cli.doctor_connections import check_connections
from orchestra.cli.doctor_engines import check_engines
from orchestra.cli.init import TEMPLATE
from orchestra.cli.main import app
from orchestra.config import parse_config
from orchestra.plan.models import SHAPES

KEY = "sk-never-to-be-shown"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    connections = "orchestra.cli.doctor_connections.check_connections"
    monkeypatch.setattr(connections, lambda providers: iter(()))  # no test leaves this machine


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
    assert engine.remedy.startswith("pip install 'torch>=")
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


def test_a_connection_is_tried_and_nothing_is_asked(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1] for one in (server, other)]
        other.close()
        providers = {
            name: {"kind": "vllm", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": KEY}
            for name, port in zip(("up", "down"), ports, strict=True)
        }
        found = list(check_connections(parse_config({"providers": providers}).providers))
        with server.accept()[0] as connection:
            assert connection.recv(1) == b""
    assert [finding.state for finding in found] == ["ok", "warn"]
    assert found[1].detail == f"127.0.0.1:{ports[1]}: Connection refused"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert {finding.detail for finding in check_connections(parse_config({"providers": providers}).providers)} == {
        "goes through a proxy: not tried"
    }


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kv_bytes": 1000}, "holds no block"),
        ({"kv_bytes": 1 << 60}, "are more than the memory"),
        ({"device": "cuda:63"}, "GPU"),
        ({"max_num_seqs": 1, "interactive_slots": 0, "kv_bytes": 1 << 26}, None),
    ],
)
def test_an_engine_that_would_not_start_is_told(settings, told):
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(SHAPES["llama-3.2-1b"]))
    (finding,) = check_engines(parse_config({"local": {"x": {"weights": "./model", **settings}}}))
    assert (finding.state, told is None or told in finding.detail) == ("ok" if told is None else "fail", True)


def test_a_file_that_is_no_model_is_told():
    Path("notes.gguf").write_text("not a model")
    (finding,) = check_engines(parse_config({"local": {"x": {"weights": "notes.gguf"}}}))
    assert finding.state == "fail"
    assert "notes.gguf" in finding.detail


def test_an_exporter_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (finding,) = doctor.check_metrics(parse_config({"metrics": {"otel": True}}))
    assert (finding.state, finding.remedy.startswith("pip install ")) == ("fail", True)


def test_settings_that_name_nothing_are_told():
    Path("orchestra.toml").write_text("")
    assert find(doctor.examine(), "settings").state == "warn"
