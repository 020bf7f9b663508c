"""The client and the desk, for responses in the background."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from batch_client_lab import Clock, account_for, everything
from diversion_lab import diversion_lab
from virtual_time import virtual

from orchestra.batches import BatchClient, BatchNotFound, BatchRefused
from orchestra.batches.route import BatchRoute
from orchestra.call import Call
from orchestra.config import parse_config
from orchestra.errors import ConfigError
from orchestra.providers.batches import BatchLine, BatchOrder, BatchState
from orchestra.providers.batches.background import LINE_FIELD, Background8Hours
from orchestra.testing import BatchScript, Reply, ScriptedProvider
from orchestra.wire import HttpWire

FORM = Background8Hours()
ORDER = BatchOrder("key-1", "/v1/responses", "m", window=28_800.0)
CONFIG: dict[str, Any] = {"providers": {"one": {"kind": "openai", "api_key": "k"}}}


class Lab:
    def __init__(self, provider: ScriptedProvider, clock: Clock, wire: HttpWire) -> None:
        self.provider, self.clock = provider, clock
        account = account_for("openai", provider.base_url)
        self.client = BatchClient(account, FORM, wire, polls_per_second=1000.0)
        self.heard: list[tuple[int, bytes]] = []

    async def create(self, **fields: Any) -> BatchState:
        line = FORM.line(ORDER, BatchLine("c7", json.dumps({"model": "m", "input": "hello", **fields}).encode()))

        async def lines() -> Any:
            yield line

        def heard(status: int, headers: Any, body: bytes) -> None:
            assert dict(headers)
            self.heard.append((status, body))

        return await self.client.create(ORDER, lines, len(line), heard=heard)


@pytest.fixture
async def lab() -> Any:
    clock, wire = Clock(), HttpWire()
    provider = ScriptedProvider(
        text=lambda payload: str(payload["input"]),
        clock=clock,
        background_default=BatchScript(validating=5.0, running=60.0),
    )
    async with provider:
        yield Lab(provider, clock, wire)
        assert wire.busy() == 0
        await wire.aclose()


async def test_from_the_line_to_its_answer(lab: Lab) -> None:
    state = await lab.create(metadata={"mine": "1"})
    assert (state.status, state.ended) == ("queued", False)
    assert lab.heard == [(200, b"")]
    lab.clock.now += 6.0
    assert (await lab.client.poll(state.id)).status == "in_progress"
    lab.clock.now += 60.0
    ended = await lab.client.poll(state.id)
    assert (ended.status, ended.ended, ended.finished) == ("completed", True, 1)
    (result,) = await everything(lab.client, ended)
    assert (result.custom_id, result.kind) == ("c7", "answered")
    body = json.loads(result.body or b"")
    assert body["output"][0]["content"][0]["text"] == "hello"
    assert body["metadata"] == {"mine": "1"}
    assert lab.provider.billed.all.background == 1


async def test_a_cancelled_one_has_no_results(lab: Lab) -> None:
    state = await lab.create()
    ended = await lab.client.cancel(state.id)
    assert (ended.status, ended.ended) == ("cancelled", True)
    assert await everything(lab.client, ended) == []
    with pytest.raises(BatchNotFound):
        await lab.client.poll("resp_unknown")


async def test_one_that_has_ended_already_can_be_cancelled(lab: Lab) -> None:
    state = await lab.create()
    lab.clock.now += 100.0
    assert (await lab.client.cancel(state.id)).status == "completed"


async def test_what_cannot_be_found_again_is_not_looked_for(lab: Lab) -> None:
    await lab.create()
    asked = len(lab.provider.log)
    assert await lab.client.find(ORDER, since=0.0, is_ours=lambda _: True, total=1) is None
    assert len(lab.provider.log) == asked


async def test_the_account_hears_of_a_refusal(lab: Lab) -> None:
    refusal = {"error": {"message": "no", "type": "invalid_request_error", "code": None}}
    lab.provider.script.append(Reply(status=400, body=refusal))
    with pytest.raises(BatchRefused):
        await lab.create()
    ((status, body),) = lab.heard
    assert (status, json.loads(body)) == (400, refusal)


# routes


def routes(config: dict[str, Any], path: str = "/v1/responses") -> list[BatchRoute]:
    from orchestra.dispatch.route_table import RouteTable

    table = RouteTable(parse_config(config), {})
    call = Call.originate(path, {"model": "one/gpt-x"})
    return [route for target in table.targets(call) for route in BatchRoute.of(target, call)]


def test_only_responses_have_several_ways() -> None:
    names = [route.name for route in routes(CONFIG)]
    assert names == ["one/gpt-x", "one/gpt-x background 8h", "one/gpt-x background 2h"]
    assert len({route.group for route in routes(CONFIG)}) == 3
    assert [route.name for route in routes(CONFIG, "/v1/chat/completions")] == ["one/gpt-x"]


@pytest.mark.parametrize(
    ("batch", "count"),
    [({}, 3), ({"background": True}, 3), ({"background": False}, 1), ({"enabled": False, "background": True}, 0)],
)
def test_what_the_settings_switch_off(batch: dict[str, Any], count: int) -> None:
    assert len(routes({"providers": {"one": {**CONFIG["providers"]["one"], "batch": batch}}})) == count


def test_prices() -> None:
    price = {"input": 10.0, "output": 10.0, "tiers": {"background 8h": 0.55, "batch": 0.4}}
    found = routes({"providers": {"one": {**CONFIG["providers"]["one"], "prices": [price]}}})
    assert [route.price_factor for route in found] == [0.4, 0.55, 0.7]
    charge = found[1].charge_of({"model": "m", "input": "x" * 400, "max_output_tokens": 100})
    assert charge.requests == 1.0
    assert charge.usd == pytest.approx(0.55 * (charge.input_tokens + 100) * 10.0 / 1e6)


def test_what_is_said_of_batches_holds_for_batches() -> None:
    one = {**CONFIG["providers"]["one"], "batch": {"expected_seconds": 60.0, "max_requests": 7}}
    found = routes({"providers": {"one": one}})
    assert [route.outlet().expected for route in found] == [60.0, None, None]
    assert [route.max_requests for route in found] == [7, 1, 1]


@pytest.mark.parametrize(
    ("kind", "batch", "told"),
    [
        (
            "fireworks",
            {"enabled": True},
            r"providers\.one\.batch.*'fireworks' has no batches; these have: openai,",
        ),
        ("anthropic", {"background": True}, r"providers\.one\.batch.*'anthropic' has no such.*: openai$"),
    ],
)
def test_what_a_kind_does_not_have_cannot_be_switched_on(kind: str, batch: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config({"providers": {"one": {"kind": kind, "batch": batch}}})
    parse_config({"providers": {"one": {"kind": kind, "batch": dict.fromkeys(batch, False)}}})


def test_a_price_for_what_a_kind_does_not_have() -> None:
    price = {"input": 1.0, "output": 1.0, "tiers": {"background 8h": 0.5}}
    with pytest.raises(ConfigError, match="no tier"):
        parse_config({"providers": {"one": {"kind": "anthropic", "prices": [price]}}})


# the desk


@virtual
async def test_as_many_are_open_as_can_be_looked_at(tmp_path: Path) -> None:
    async with diversion_lab(tmp_path) as lab:
        call = Call.originate("/v1/responses", {"model": "fast"})
        batch, eight, two = lab.desk.routes(call)
        assert lab.desk.outlet(batch, None).room is None
        assert lab.desk.outlet(eight, None).room == FORM.traits.max_open
        async with lab.desk.queued(eight, 10, job="j", already=False):
            assert lab.desk.outlet(eight, None).room == FORM.traits.max_open - 1
            assert lab.desk.outlet(two, None).room == FORM.traits.max_open
        assert lab.desk.outlet(eight, None).room == FORM.traits.max_open


@virtual
async def test_a_route_is_found_again_by_what_the_ledger_says(tmp_path: Path) -> None:
    async with diversion_lab(tmp_path) as lab:
        call = Call.originate("/v1/responses", {"model": "fast"})
        for route in lab.desk.routes(call):
            record = lab.manager.store.batches.open(
                lab.manager.store.create(
                    "j" + route.form.label, created=0.0, model=None, deadline=None, source=None
                ).id,
                provider=route.account.name,
                account=route.fingerprint,
                route=route.name,
                model=route.model,
                path=route.path,
                headers=(),
                window=route.form.traits.windows[0],
                now=0.0,
            )
            again = lab.desk.reopened(record)
            assert again is not None
            assert (again.name, again.form) == (route.name, route.form)


@virtual
async def test_looks_and_cancellations_are_paced_together(tmp_path: Path) -> None:
    course = BatchScript(running=1e4)
    text = {"text": lambda payload: str(payload["input"])}
    async with diversion_lab(tmp_path, background_default=course, **text) as lab:
        route = lab.desk.routes(Call.originate("/v1/responses", {"model": "fast"}))[1]
        client = lab.desk.client(route)
        line = FORM.line(ORDER, BatchLine("c", b'{"model":"m","input":"x"}'))

        async def lines() -> Any:
            yield line

        states = await asyncio.gather(*(client.create(ORDER, lines, len(line)) for _ in range(50)))
        await asyncio.gather(*(client.cancel(state.id) for state in states))
        asked = [hit.at for hit in lab.provider.log if hit.method == "GET" or hit.path.endswith("/cancel")]
        assert len(asked) == 100
        assert asked[-1] - asked[0] > 8.0
        assert max(Counter(int(at) for at in asked).values()) <= 20
        assert LINE_FIELD.encode() in line
