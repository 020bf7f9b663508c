"""`orchestra limits`, against a server that tells limits as the providers do."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import Result
from typer.testing import CliRunner

from orchestra.cli.limits_toml import as_toml
from orchestra.cli.main import app
from orchestra.config import LimitsConfig, parse_config
from orchestra.errors import ConfigError, ConnectionFailed, InputError, OrchestraError, ProviderError
from orchestra.providers.rate_limits import LimitGroup, Remark

SAMPLE = Path(__file__).parent.parent / "samples" / "anthropic_rate_limits_admin.json"
KEY = "sk-admin-never-to-be-shown"
Invoke = Callable[..., Awaitable[Result]]


@dataclass
class AdminServer:
    """Serves ``pages`` in their order, each when its cursor is asked for, to who shows the right key.

    ``status`` and ``body`` are said instead, where there is a status.
    """

    pages: dict[str | None, Any]
    cursor: str
    key_header: tuple[str, str]
    status: int = 0
    body: Any = ""
    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(str(request.rel_url))
        name, value = self.key_header
        if request.headers.get(name) != value:
            told = {"error": {"type": "authentication_error", "message": f"no such key: {KEY}"}}
            return web.json_response(told, status=401)
        if self.status:
            return web.json_response(self.body, status=self.status)
        return web.json_response(self.pages[request.query.get(self.cursor)])


@asynccontextmanager
async def serving(server: AdminServer) -> AsyncIterator[AdminServer]:
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def project(model: str, **limits: int) -> dict[str, Any]:
    return {"object": "project.rate_limit", "id": f"rl-{model}", "model": model, **limits}


def anthropic_server(**changes: Any) -> AdminServer:
    first = json.loads(SAMPLE.read_text())
    second = {"data": [first["data"].pop()], "next_page": None}
    pages: dict[str | None, Any] = {None: {**first, "next_page": "page/2"}, "page/2": second}
    return AdminServer(**{"pages": pages, "cursor": "page", "key_header": ("x-api-key", KEY), **changes})


def openai_server(**changes: Any) -> AdminServer:
    first = [
        project("gpt-5", max_requests_per_1_minute=500, max_tokens_per_1_minute=30_000),
        project("image-1", max_requests_per_1_minute=5, max_tokens_per_1_minute=100, max_images_per_1_minute=50),
    ]
    second = [
        project(
            "gpt-5-mini",
            max_requests_per_1_minute=1000,
            max_tokens_per_1_minute=200_000,
            max_requests_per_1_day=10_000,
            batch_1_day_max_input_tokens=2_000_000,
        )
    ]
    pages: dict[str | None, Any] = {
        None: {"object": "list", "data": first, "last_id": "rl-image-1", "has_more": True},
        "rl-image-1": {"object": "list", "data": second, "last_id": "rl-gpt-5-mini", "has_more": False},
    }
    shown = ("authorization", f"Bearer {KEY}")
    return AdminServer(**{"pages": pages, "cursor": "after", "key_header": shown, **changes})


@pytest.fixture(params=["aiohttp", "httpx2"])
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Return what runs the command, in a thread since it has a loop of its own, with settings for a server."""
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "orchestra.toml"
    for name in ("OPENAI_ADMIN_KEY", "ANTHROPIC_ADMIN_KEY"):
        monkeypatch.setenv(name, KEY)

    async def run(server: AdminServer | None, *arguments: str, network: str = "aiohttp") -> Result:
        url = "http://127.0.0.1:9" if server is None else server.url
        settings.write_text(
            f'[providers.claude]\nkind = "anthropic"\nbase_url = "{url}"\napi_key = "sk-of-calls"\n'
            f'[providers.oai]\nkind = "openai"\nbase_url = "{url}/v1"\n'
            f'[providers.own]\nkind = "vllm"\nbase_url = "{url}/v1"\n'
            f'[network]\nclient = "{network}"\n'
        )
        done = await asyncio.to_thread(CliRunner().invoke, app, ["limits", *arguments])
        assert KEY not in done.output + str(done.exception)
        return done

    return run


def sections(text: str, name: str) -> tuple[LimitsConfig, ...]:
    """Return the limits that text holds, as settings that it was pasted into have them."""
    pasted = f'[providers.{name}]\nkind = "openai"\n{text}'
    return parse_config(tomllib.loads(pasted)).providers[name].limits


def comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


async def test_anthropic_s_limits_are_settings(invoke: Invoke, client: str) -> None:
    async with serving(anthropic_server()) as server:
        done = await invoke(server, "claude", network=client)
    assert done.exit_code == 0
    assert server.asked == ["/v1/organizations/rate_limits", "/v1/organizations/rate_limits?page=page%2F2"]
    (sonnet,) = sections(done.stdout, "claude")
    assert sonnet.model_dump(exclude_unset=True) == {
        "models": ("claude-sonnet-5",),
        "requests_per_minute": 1000,
        "input_tokens_per_minute": 2_000_000,
        "output_tokens_per_minute": 400_000,
    }
    assert "left out: enqueued_batch_requests = 200_000" in comments(done.stdout)
    assert "127.0.0.1" in comments(done.stdout)


async def test_openai_s_limits_are_settings(invoke: Invoke, client: str) -> None:
    async with serving(openai_server()) as server:
        done = await invoke(server, "oai", "--project", "proj_1", network=client)
    assert done.exit_code == 0
    there = "/v1/organization/projects/proj_1/rate_limits?limit=100"
    assert server.asked == [there, f"{there}&after=rl-image-1"]
    found = {group.models: group.model_dump(exclude_unset=True) for group in sections(done.stdout, "oai")}
    assert list(found) == [("gpt-5",), ("image-1",), ("gpt-5-mini",)]
    assert found["gpt-5-mini",] == {
        "models": ("gpt-5-mini",),
        "requests_per_minute": 1000,
        "tokens_per_minute": 200_000,
        "requests_per_day": 10_000,
        "enqueued_batch_tokens": 2_000_000,
    }
    assert "left out: max_images_per_1_minute = 50" in comments(done.stdout)
    assert "enqueued_batch_tokens: told as batch_1_day_max_input_tokens = 2_000_000" in comments(done.stdout)


async def test_a_workspace_is_asked_for_with_what_it_inherits(invoke: Invoke) -> None:
    whole = json.loads(SAMPLE.read_text())
    async with serving(anthropic_server(pages={None: whole})) as server:
        done = await invoke(server, "claude", "--workspace", "wrkspc_1")
    assert done.exit_code == 0
    assert server.asked == ["/v1/organizations/workspaces/wrkspc_1/rate_limits?include_inherited=true"]


async def test_only_some_models(invoke: Invoke) -> None:
    async with serving(openai_server()) as server:
        done = await invoke(server, "oai", "--project", "p", "--model", "gpt-5-*", "--model", "image-*")
    assert [group.models for group in sections(done.stdout, "oai")] == [("image-1",), ("gpt-5-mini",)]


async def test_as_json(invoke: Invoke) -> None:
    async with serving(anthropic_server()) as server:
        done = await invoke(server, "claude", "--json")
    told = json.loads(done.stdout)
    assert told["provider"] == "claude"
    (sonnet,) = told["limits"]
    assert LimitsConfig.model_validate(sonnet).output_tokens_per_minute == 400_000
    assert {(one["group"], one["limit"], one["value"], one["setting"]) for one in told["remarks"]} == {
        ("Message Batches", "requests_per_minute", 1000, None),
        ("Message Batches", "enqueued_batch_requests", 200_000, None),
    }
    assert all(one["why"] and one["models"] == [] for one in told["remarks"])


async def test_the_key_of_another_variable(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOSS", KEY)
    monkeypatch.delenv("ANTHROPIC_ADMIN_KEY")
    async with serving(anthropic_server()) as server:
        missing = await invoke(server, "claude")
        assert server.asked == [], "without a key nobody is asked"
        done = await invoke(server, "claude", "--key-env", "BOSS")
    assert isinstance(missing.exception, ConfigError)
    assert "ANTHROPIC_ADMIN_KEY is not set" in str(missing.exception)
    assert done.exit_code == 0


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("name", ["claude", "oai"])
async def test_a_key_that_is_no_administrator_s(invoke: Invoke, name: str, status: int) -> None:
    refused = {"error": {"message": f"Incorrect API key provided: {KEY}"}}
    server = (anthropic_server if name == "claude" else openai_server)(status=status, body=refused)
    async with serving(server):
        done = await invoke(server, name, *(["--project", "p"] if name == "oai" else []))
    assert isinstance(done.exception, ProviderError)
    assert done.exception.status == status
    assert "administrator's key is needed" in str(done.exception)
    assert "_ADMIN_KEY" in str(done.exception)
    assert done.stdout == ""


async def test_the_key_of_calls_is_not_sent(invoke: Invoke) -> None:
    """The server answers 401 to any other key than the administrator's: it is that which was shown."""
    async with serving(anthropic_server(key_header=("x-api-key", "sk-of-calls"))) as server:
        done = await invoke(server, "claude")
    assert isinstance(done.exception, ProviderError)
    assert done.exception.status == 401


async def test_a_project_that_is_not_there(invoke: Invoke) -> None:
    missing = {"error": {"message": f"The project was not found by {KEY}"}}
    async with serving(openai_server(status=404, body=missing)) as server:
        done = await invoke(server, "oai", "--project", "proj_x")
    assert isinstance(done.exception, ProviderError)
    assert "'proj_x'" in str(done.exception)
    assert "was not found by ***" in str(done.exception)


@pytest.mark.parametrize("status", [307, 429, 500])
async def test_any_other_answer_is_told(invoke: Invoke, status: int) -> None:
    async with serving(anthropic_server(status=status, body={"error": {"message": "not now"}})) as server:
        done = await invoke(server, "claude")
    assert isinstance(done.exception, ProviderError)
    assert f"answered {status}" in str(done.exception)
    assert "not now" in str(done.exception)
    assert len(server.asked) == 1


async def test_no_answer(invoke: Invoke) -> None:
    done = await invoke(None, "claude")
    assert isinstance(done.exception, ConnectionFailed)


@pytest.mark.parametrize(
    "pages",
    [{None: []}, {None: {"data": [], "next_page": "x"}, "x": {"data": [], "next_page": "x"}}],
    ids=["no list", "a circle"],
)
async def test_what_is_no_list_of_limits(invoke: Invoke, pages: dict[str | None, Any]) -> None:
    async with serving(anthropic_server(pages=pages)) as server:
        done = await invoke(server, "claude")
    assert isinstance(done.exception, ConnectionFailed)
    assert len(server.asked) == len(pages)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["own"], "'vllm' tells nobody"),
        (["cloude"], "did you mean 'claude'"),
        (["oai"], "--project"),
        (["oai", "--project", ""], "--project"),
        (["oai", "--project", "p", "--workspace", "w"], "no --workspace"),
        (["claude", "--project", "p"], "no --project"),
    ],
)
async def test_what_cannot_be_asked(invoke: Invoke, arguments: list[str], said: str) -> None:
    done = await invoke(None, *arguments)
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)


async def test_a_kind_needs_no_settings(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own address is asked, which a proxy that nobody listens at keeps from being reached."""
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "none")
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    done = await asyncio.to_thread(CliRunner().invoke, app, ["limits", "anthropic"])
    assert isinstance(done.exception, OrchestraError)
    assert "api.anthropic.com" in str(done.exception)


# the text


def test_what_a_provider_says_cannot_leave_its_comment():
    evil = 'x\n[[providers.p.limits]]\r\nmodels = ["*"]\u2028\x85\x0b#'
    groups = [
        LimitGroup(evil, (), {}, (Remark(evil, evil, evil), Remark(evil, {"a": evil}, evil, evil))),
        LimitGroup(evil, (evil, '"\\\x7f\x00'), {"requests_per_minute": 5}, ()),
    ]
    text = as_toml("p", groups, evil)
    assert [group.requests_per_minute for group in sections(text, "p")] == [5]


def test_a_name_is_no_pattern():
    text = as_toml("p", [LimitGroup("g", ("a*", "b[c]?", "d"), {"tokens_per_day": 5}, ())], "told")
    (group,) = sections(text, "p")
    from orchestra.budget.limits import matches

    assert all(matches(group, name) for name in ("a*", "b[c]?", "d"))
    assert not any(matches(group, name) for name in ("ab", "bc", "b[c]x", "dd"))


def test_a_name_that_is_no_bare_key():
    text = as_toml('my "own" one', [LimitGroup("g", ("m",), {"tokens_per_day": 5}, ())], "told")
    assert list(tomllib.loads(text)["providers"]) == ['my "own" one']
