"""What a wrong orchestra.toml is told: the file, the place, the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestra.config import load_config, parse_config
from orchestra.errors import ConfigError


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"providers": 5}, "providers: must be a section"),
        ({"models": {"fast": 3}}, "models.fast: must be a section"),
        ({"models": {"fast": {}}}, "models.fast.routes: is missing"),
        ({"models": {"fast": {"routes": "a/b"}}}, "models.fast.routes: must be a list"),
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
    assert load_config(path).bulk.store == "x.db"


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


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
