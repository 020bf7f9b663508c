"""What administrators are told of an account's limits, and what of it the settings can say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.config import LimitsConfig
from orchestra.kinds import KINDS
from orchestra.providers import FormatError
from orchestra.providers.rate_limits import LimitGroup, RateLimitApi, rate_limits_of_kind

SAMPLE = Path(__file__).parent.parent / "samples" / "anthropic_rate_limits_admin.json"


def api(kind: str) -> RateLimitApi:
    found = rate_limits_of_kind(kind)
    assert found is not None
    return found


def read(kind: str, data: Any, **page: Any) -> list[LimitGroup]:
    return api(kind).read(json.dumps({"data": data, **page}).encode())[0]


def entry(kind: str, limits: dict[str, Any], models: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "rate_limit",
        "group": {"type": kind, "id": "rlg_1"},
        "models": models,
        "limits": [{"type": name, "value": value} for name, value in limits.items()],
    }


def project(model: str, **limits: Any) -> dict[str, Any]:
    return {"object": "project.rate_limit", "id": f"rl-{model}", "model": model, **limits}


def told(group: LimitGroup) -> dict[str, Any]:
    """Return every limit of a group's remarks with its value."""
    return {remark.limit: remark.value for remark in group.remarks}


def test_only_these_kinds_tell_their_limits():
    assert [kind for kind in KINDS if rate_limits_of_kind(kind) is not None] == ["openai", "anthropic"]


def test_anthropic_s_sample():
    (sonnet, batch), cursor = api("anthropic").read(SAMPLE.read_bytes())
    assert cursor is None
    assert (sonnet.name, sonnet.models) == ("Sonnet 5", ("claude-sonnet-5",))
    assert sonnet.settings == {
        "requests_per_minute": 1000,
        "input_tokens_per_minute": 2_000_000,
        "output_tokens_per_minute": 400_000,
    }
    assert sonnet.remarks == ()
    assert (batch.models, batch.settings) == ((), {})
    assert told(batch) == {"requests_per_minute": 1000, "enqueued_batch_requests": 200_000}


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_what_is_set_are_keys_of_the_settings(kind: str):
    every = {
        "anthropic": entry(
            "model_group",
            dict.fromkeys(
                (
                    "requests_per_minute",
                    "input_tokens_per_minute",
                    "output_tokens_per_minute",
                    "tokens_per_minute",
                    "tokens_per_day",
                ),
                7,
            ),
            ["m"],
        ),
        "openai": project(
            "m",
            max_requests_per_1_minute=7,
            max_tokens_per_1_minute=7,
            max_requests_per_1_day=7,
            batch_1_day_max_input_tokens=7,
        ),
    }
    (group,) = read(kind, [every[kind]])
    config = LimitsConfig.model_validate({"models": group.models, **group.settings})
    assert config.model_dump(exclude_unset=True) == {"models": ("m",), **dict.fromkeys(group.settings, 7)}
    assert len(group.settings) == (5 if kind == "anthropic" else 4)


@pytest.mark.parametrize(
    "name", ["fast_itpmca", "fast_otpm", "tool_uses_per_second", "enqueued_batch_requests", "moons_per_minute"]
)
def test_anthropic_s_other_limits_are_told_and_not_set(name: str):
    (group,) = read("anthropic", [entry("model_group", {name: 5, "requests_per_minute": 6}, ["m"])])
    assert group.settings == {"requests_per_minute": 6}
    (remark,) = group.remarks
    assert (remark.limit, remark.value, remark.setting) == (name, 5, None)
    assert ("does not know" in remark.why) == (name == "moons_per_minute")


@pytest.mark.parametrize("name", ["max_images_per_1_minute", "max_audio_megabytes_per_1_minute", "max_moons"])
def test_openai_s_other_limits_are_told_and_not_set(name: str):
    (group,) = read("openai", [project("m", max_requests_per_1_minute=6, **{name: 5})])
    assert group.settings == {"requests_per_minute": 6}
    (remark,) = group.remarks
    assert (remark.limit, remark.value, remark.setting) == (name, 5, None)
    assert ("does not know" in remark.why) == (name == "max_moons")


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_limits_on_input_the_lower_is_set_and_both_are_told(order: int):
    names = ["input_tokens_per_minute_cache_aware", "input_tokens_per_minute"][::order]
    for values in ((30, 20), (20, 30)):
        limits = dict(zip(names, values, strict=True))
        (group,) = read("anthropic", [entry("model_group", limits, ["m"])])
        assert group.settings == {"input_tokens_per_minute": 20}
        assert told(group)["input_tokens_per_minute"] == limits["input_tokens_per_minute"]
        assert names[1] in told(group), "that which came second is no longer seen in the settings"
        assert {remark.setting for remark in group.remarks} == {"input_tokens_per_minute"}


def test_a_limit_that_counts_cache_reads_says_so():
    (group,) = read("anthropic", [entry("model_group", {"input_tokens_per_minute": 20}, ["m"])])
    assert group.settings == {"input_tokens_per_minute": 20}
    assert "cache" in group.remarks[0].why
    (group,) = read("anthropic", [entry("model_group", {"input_tokens_per_minute_cache_aware": 20}, ["m"])])
    assert group.remarks == ()


def test_batches_of_openai_are_bounded_and_the_difference_is_told():
    (group,) = read("openai", [project("m", batch_1_day_max_input_tokens=900_000)])
    assert group.settings == {"enqueued_batch_tokens": 900_000}
    assert group.remarks[0].setting == "enqueued_batch_tokens"


@pytest.mark.parametrize("kind", ["batch", "token_count", "files", "skills", "web_search", "moons"])
def test_what_is_of_no_model_is_told_and_not_set(kind: str):
    (group,) = read("anthropic", [entry(kind, {"requests_per_minute": 6, "moons_per_minute": 5})])
    assert (group.models, group.settings) == ((), {})
    assert told(group) == {"requests_per_minute": 6, "moons_per_minute": 5}
    assert any(repr(kind) in remark.why for remark in group.remarks) == (kind == "moons")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "600", None, [600], 1e300])
def test_what_is_no_limit_is_told_and_not_set(value: Any):
    (group,) = read("anthropic", [entry("model_group", {"requests_per_minute": value}, ["m"])])
    assert group.settings == {}
    assert told(group) == {"requests_per_minute": value}
    if value is not None:  # which OpenAI says for what it does not limit
        (group,) = read("openai", [project("m", max_requests_per_1_minute=value)])
        assert (group.settings, told(group)) == ({}, {"max_requests_per_1_minute": value})


@pytest.mark.parametrize("models", [None, [], [5], "claude"])
def test_a_group_without_names_sets_nothing(models: Any):
    (group,) = read("anthropic", [entry("model_group", {"requests_per_minute": 6}, models)])
    assert (group.models, group.settings, told(group)) == ((), {}, {"requests_per_minute": 6})
    (group,) = read("openai", [{"id": "rl-1", "model": None, "max_requests_per_1_minute": 6}])
    assert (group.models, group.settings, told(group)) == ((), {}, {"max_requests_per_1_minute": 6})


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_an_entry_that_is_none_is_told(kind: str):
    (group,) = read(kind, ["moon"])
    assert len(group.remarks) == 1


def test_a_limit_without_a_type_is_told():
    bare = {**entry("model_group", {}, ["m"]), "limits": [{"value": 5}, 6]}
    (group,) = read("anthropic", [bare])
    assert [remark.value for remark in group.remarks] == [{"value": 5}, 6]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"data": {}}', b'{"data": "x"}'])
def test_an_answer_that_is_none_is_refused(kind: str, body: bytes):
    with pytest.raises(FormatError):
        api(kind).read(body)


def test_pages_of_anthropic():
    ours = api("anthropic")
    assert ours.path(None, None) == "/v1/organizations/rate_limits"
    assert ours.path(None, "a&b=/c") == "/v1/organizations/rate_limits?page=a%26b%3D%2Fc"
    there = "/v1/organizations/workspaces/wrkspc_1/rate_limits?include_inherited=true"
    assert ours.path("wrkspc_1", None) == there
    assert ours.path("wrkspc_1", "x") == f"{there}&page=x"
    assert ours.path("../keys", None).startswith("/v1/organizations/workspaces/%2E%2E%2Fkeys/")
    assert ours.read(b'{"data": [], "next_page": "x"}') == ([], "x")
    assert ours.read(b'{"data": [], "next_page": ""}') == ([], None)


def test_pages_of_openai():
    ours = api("openai")
    there = "/organization/projects/proj_1/rate_limits?limit=100"
    assert ours.path("proj_1", None) == there
    assert ours.path("proj_1", "rl&x") == f"{there}&after=rl%26x"
    page = {"data": [project("a"), project("b")], "has_more": True}
    assert ours.read(json.dumps(page).encode())[1] == "rl-b"
    assert ours.read(json.dumps({**page, "last_id": "rl-c"}).encode())[1] == "rl-c"
    assert ours.read(json.dumps({**page, "has_more": False, "last_id": "rl-c"}).encode())[1] is None
    with pytest.raises(FormatError, match="more"):
        ours.read(b'{"data": [], "has_more": true}')
