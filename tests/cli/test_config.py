"""What a wrong orchestra.toml is told: the file, the place, the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestra.config import load_config, parse_config
from orchestra.errors import ConfigError
from orchestra.kinds import KINDS

PRICE = {"input": 1.0, "output": 2.0}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"providers": 5}, "providers: must be a section"),
        ({"models": {"fast": 3}}, "models.fast: must be a section"),
        ({"models": {"fast": {}}}, "models.fast.routes: is missing"),
        ({"models": {"fast": {"routes": "a/b"}}}, "models.fast.routes: must be a list"),
        (
            {"providers": {"s": {"kind": "openai", "limits": {"requests_per_minute": 1}}}},
            "providers.s.limits: must be a list of sections: write [[providers.s.limits]]",
        ),
        ({"models": {"fast": {"routes": []}}}, "models.fast.routes: must name at least one route"),
        ({"models": {"fast": {"routes": ["x"]}}}, "'x' must be written 'provider/model' or 'local/name'"),
        ({"models": {"fast": {"routes": ["x/"]}}}, "'x/' must be written 'provider/model' or 'local/name'"),
        ({"traffic": {"interactive_reserve": "foo"}}, 'must be "auto" or a share from 0 to 0.9'),
        ({"traffic": {"interactive_reserve": [1]}}, 'must be "auto" or a share from 0 to 0.9'),
        ({"traffic": {"interactive_reserve": True}}, 'must be "auto" or a share from 0 to 0.9'),
        ({"traffic": {"interactive_reserve": float("nan")}}, 'must be "auto" or a share from 0 to 0.9'),
        ({"providers": {"x": {"kind": "openai-compatible"}}}, "providers.x.base_url: is missing"),
        ({"local": {"x": {"weights": ""}}}, "local.x.weights: must not be empty"),
        (
            {"local": {"x": {"weights": "w", "threads": 2000}}},
            "local.x.threads: must be less than or equal to 1024",
        ),
        (
            {"local": {"x": {"weights": "w", "interactive_slots": 4, "max_num_seqs": 4}}},
            "local.x: interactive_slots must be below max_num_seqs, which is 4",
        ),
        (
            {"local": {"x": {"weights": "w", "tpot_target_ms": 0}}},
            "local.x.tpot_target_ms: must be greater than 0",
        ),
        (
            {"local": {"x": {"weights": "w", "interactive_cache": 1.0}}},
            "local.x.interactive_cache: must be less than or equal to 0.9",
        ),
        ({"local": {"x": {"weights": "w", "prefix_cache": 1}}}, "local.x.prefix_cache: must be a valid boolean"),
        ({"bulk": {"store": "a\0b"}}, "bulk.store: must be the name of a file"),
        (
            {"providers": {"acme": {"kind": "antropic"}}},
            "(did you mean 'anthropic'?)",
        ),
        ({"providers": {"acme": {"kind": ["openai"]}}}, "providers.acme.kind: must be"),
        (
            {"providers": {"acme": {"kind": "openai", "limits": [3]}}},
            "providers.acme.limits[0]: must be a section",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "limits": [{"burst_seconds": "x"}]}}},
            "providers.acme.limits[0].burst_seconds: must be a number",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "limits": [{"max_concurrency": 1.5}]}}},
            "providers.acme.limits[0].max_concurrency: must be a whole number",
        ),
        ({"models": {"gpt-5.1": {"routes": [3]}}}, 'models."gpt-5.1".routes[0]: must be a string'),
        (
            {"local": {"x": {"weigths": "w"}}},
            "orchestra.toml: unknown key 'local.x.weigths'; did you mean 'weights'?",
        ),
        ({"bulk": {"stor": "x"}}, "unknown key 'bulk.stor'; did you mean 'store'?"),
        ({"network": {"cliemt": "x"}}, "unknown key 'network.cliemt'; did you mean 'client'?"),
        (
            {"providers": {"limits": {"kind": "openai", "priorty": True}}},
            "unknown key 'providers.limits.priorty'; did you mean 'priority'?",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "batch": {"poll_second": 2}}}},
            "unknown key 'providers.acme.batch.poll_second'; did you mean 'poll_seconds'?",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "batch": {"window_seconds": 60}}}},
            "providers.acme.batch: window_seconds may not be above window_max_seconds, which is 30",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "batch": {"enabled": "yes"}}}},
            "providers.acme.batch.enabled: must be a valid boolean",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "batch": {"max_requests": 0}}}},
            "providers.acme.batch.max_requests: must be greater than or equal to 1",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "batch": {"expected_seconds": float("inf")}}}},
            "providers.acme.batch.expected_seconds: must be a finite number",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "service_tiers": {"bulks": "flex"}}}},
            "unknown key 'providers.acme.service_tiers.bulks'; did you mean 'bulk'?",
        ),
        (
            {"providers": {"acme": {"kind": "groq", "service_tiers": {"bulk": "priority"}}}},
            "providers.acme.service_tiers: bulk = 'priority' is no tier of the kind 'groq'; "
            "it has: auto, on_demand, flex, performance",
        ),
        (
            {"providers": {"acme": {"kind": "together", "service_tiers": {"bulk": "flex"}}}},
            "providers.acme.service_tiers: the kind 'together' has no service tiers; these have: openai, "
            "anthropic, gemini, azure, mistral, groq, fireworks, openai-compatible",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "service_tiers": {"bulk": True}}}},
            "providers.acme.service_tiers.bulk: must be a string",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "service_tiers": "flex"}}},
            "providers.acme.service_tiers: must be a section",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "prices": [PRICE | {"tiers": {"fast": 2.0}}]}}},
            "providers.acme.prices: tiers: 'fast' is no tier of the kind 'openai'; "
            "these are billed: default, flex, scale, priority, ultrafast, batch",
        ),
        (
            {"providers": {"acme": {"kind": "together", "prices": [PRICE | {"tiers": {"flex": 0.5}}]}}},
            "providers.acme.prices: tiers: 'flex' is no tier of the kind 'together'; these are billed: batch",
        ),
        (
            {"providers": {"acme": {"kind": "openai", "prices": [PRICE | {"tiers": {"flex": -1}}]}}},
            "providers.acme.prices[0].tiers.flex: must be greater than or equal to 0",
        ),
    ],
)
def test_one_clear_fault(data: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, source="orchestra.toml")
    message = str(caught.value)
    assert message.startswith("orchestra.toml: ")
    assert told in message
    assert ";" not in message.replace(told, "")


def test_a_missing_key_that_no_misspelling_explains_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"local": {"x": {"weigths": "w"}, "y": {}}})
    assert str(caught.value) == (
        "config: unknown key 'local.x.weigths'; did you mean 'weights'?; local.y.weights: is missing"
    )


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "orchestra.toml"
    path.write_bytes(b"\xef\xbb\xbf[bulk]\nstore = 'x.db'\n")
    assert load_config(path).bulk.store == str(tmp_path / "x.db")


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"a = " + b"[" * 5000, "nested too deeply"), (b"a = '\xff'", "not UTF-8"), (b"a = ", "not valid TOML")],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "orchestra.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].tiers])
def test_every_tier_that_a_kind_documents_can_be_set_and_priced(kind: str) -> None:
    for tier in KINDS[kind].tiers:
        account = {"kind": kind, "base_url": "http://x.invalid", "service_tiers": {"interactive": tier}}
        prices = [PRICE | {"tiers": dict.fromkeys(KINDS[kind].billed_tiers, 1.5)}]
        found = parse_config({"providers": {"acme": account | {"prices": prices}}}).providers["acme"]
        assert (found.service_tiers.interactive, found.service_tiers.bulk) == (tier, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_has_a_price_of_its_own_everywhere(kind: str) -> None:
    account = {"kind": kind, "base_url": "http://x.invalid", "prices": [PRICE | {"tiers": {"batch": 0.4}}]}
    found = parse_config({"providers": {"acme": account}}).providers["acme"]
    assert found.prices[0].tiers["batch"] == 0.4


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_relative_paths_count_from_the_folder_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app" / "models").mkdir(parents=True)
    (tmp_path / "app" / "smollm2-135m").mkdir()
    weights = {
        "a": "smollm2-135m",
        "b": "models",
        "c": "x.gguf",
        "d": "../y",
        "e": "~/z",
        "f": "/abs",
        "g": "no-such",
    }
    local = "".join(f"[local.{name}]\nweights = '{word}'\n" for name, word in weights.items())
    path = tmp_path / "app" / "orchestra.toml"
    path.write_text(
        f"[budget]\nbackend = 'sqlite:b.db'\n[providers.one]\nkind = 'openai'\napi_key = 'file:key'\n{local}"
    )
    (tmp_path / "app" / "key").write_text("sk-1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config, app = load_config("app/orchestra.toml"), f"{tmp_path}/app"
    monkeypatch.chdir("/")
    assert config.bulk.store == f"{app}/.orchestra/jobs.db"
    assert config.budget.sqlite_path == Path(f"{app}/b.db")
    assert config.providers["one"].resolve_api_key() == "sk-1"
    found = [section.weights for section in config.local.values()]
    at_home = "/home/me/z"
    assert found == ["smollm2-135m", f"{app}/models", f"{app}/x.gguf", f"{app}/../y", at_home, "/abs", "no-such"]
    assert parse_config({}).bulk.store == ".orchestra/jobs.db", "without a file from the current folder"
