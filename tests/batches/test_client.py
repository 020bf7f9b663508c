"""The client of batch endpoints, over real sockets, against a provider that goes wrong as it is told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from batch_client_lab import (
    SECRET,
    BatchClientLab,
    account_for,
    batch_client_lab,
    everything,
    form_for,
    order_for,
    written,
)

from orchestra.batches import BatchBusy, BatchClient, BatchNotFound, BatchRefused
from orchestra.errors import ConnectionFailed, ProviderError
from orchestra.testing import BatchLimits, BatchScript, Reply, ScriptedProvider

BOTH = pytest.mark.parametrize("kind", ["openai", "anthropic"])
KEY_HEADERS = {"openai": "authorization", "anthropic": "x-api-key", "gemini": "x-goog-api-key"}
NAMES = {"c0", "c1", "c2"}


def kinds(results: list[Any]) -> dict[str, str]:
    return {result.custom_id: result.kind for result in results}


def asked(lab: BatchClientLab, method: str, end: str) -> int:
    return sum(hit.method == method and hit.path.endswith(end) for hit in lab.provider.log)


# the whole way


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini", "mistral"])
async def test_from_the_lines_to_their_answers(kind: str) -> None:
    async with batch_client_lab(kind, batch_default=BatchScript(running=100.0, shuffle=7)) as lab:
        state = await lab.submit()
        assert not state.ended
        assert state.key == (None if kind == "anthropic" else "key-1")
        lab.clock.now += 101
        state = await lab.client.poll(state.id)
        assert (state.ended, state.total, state.finished) == (True, 3, 3)
        results = await everything(lab.client, state)
        assert kinds(results) == dict.fromkeys(NAMES, "answered")
        assert kind == "gemini" or all(f"to {one.custom_id[1:]}".encode() in (one.body or b"") for one in results)
        header = KEY_HEADERS.get(kind, "authorization")
        assert all(SECRET in hit.headers[header] for hit in lab.provider.log)


async def test_a_long_file_goes_up_and_down_in_pieces() -> None:
    async with batch_client_lab("openai") as lab:
        state = await lab.client.poll((await lab.submit(count=3000)).id)
        upload = next(hit for hit in lab.provider.log if hit.path.endswith("/files"))
        assert "transfer-encoding" not in upload.headers
        assert upload.headers["content-length"] == str(upload.size)
        chunks = [len(results) async for results in lab.client.results(state)]
        assert sum(chunks) == 3000
        assert max(chunks) < 1500


async def test_the_version_that_the_calls_were_written_for() -> None:
    async with batch_client_lab("anthropic") as lab:
        headers = (("anthropic-version", "2026-10-21"), ("anthropic-beta", "output-300k-2026-03-24"))
        state = await lab.submit(order_for("anthropic", headers=headers))
        await lab.client.poll(state.id)
        create, poll = lab.provider.log
        assert [create.headers[name] for name, _ in headers] == [value for _, value in headers]
        assert poll.headers["anthropic-version"] == "2023-06-01"


# ends


@pytest.mark.parametrize("absent_id", [None, ""])
async def test_only_an_error_file(absent_id: str | None) -> None:
    replies = {number: Reply.error(400, "bad_line", message=f"no {number}") for number in range(3)}
    async with batch_client_lab("openai", batch_default=BatchScript(replies=replies, absent_id=absent_id)) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        assert (state.status, len(state.files)) == ("completed", 1)
        results = await everything(lab.client, state)
        assert {(one.custom_id, one.kind, one.status, one.code, one.message) for one in results} == {
            (f"c{number}", "refused", 400, "bad_line", f"no {number}") for number in range(3)
        }


@BOTH
async def test_what_was_done_before_it_expired(kind: str) -> None:
    async with batch_client_lab(kind, batch_default=BatchScript(end="expired", answered=1)) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        assert kinds(await everything(lab.client, state)) == {"c0": "answered", "c1": "unserved", "c2": "unserved"}


@BOTH
async def test_a_batch_that_is_cancelled(kind: str) -> None:
    async with batch_client_lab(kind, batch_default=BatchScript(running=100.0, cancelling=50.0)) as lab:
        state = await lab.submit()
        lab.clock.now += 70
        cancelling = await lab.client.cancel(state.id)
        assert (cancelling.ended, cancelling.status[:9]) == (
            False,
            "cancellin" if kind == "openai" else "canceling",
        )
        lab.clock.now += 51
        results = kinds(await everything(lab.client, await lab.client.poll(state.id)))
        assert {name for name, end in results.items() if end == "answered"} == {"c0", "c1"}


@BOTH
async def test_a_cancellation_that_comes_too_late_is_no_error(kind: str) -> None:
    async with batch_client_lab(kind) as lab:
        state = await lab.submit()
        assert (await lab.client.cancel(state.id)).ended
        with pytest.raises(BatchNotFound):
            await lab.client.cancel("nothing")


async def test_a_queue_without_room() -> None:
    async with batch_client_lab("openai", batch_limits=BatchLimits(enqueued_tokens=1)) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        assert (state.ended, state.queue_full) == (True, True)
        assert await everything(lab.client, state) == []
    async with batch_client_lab("anthropic", batch_limits=BatchLimits(enqueued_requests=2)) as lab:
        with pytest.raises(BatchBusy, match="queue of batches") as caught:
            await lab.submit()
        assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "rate_limit_error", 0.0)


async def test_garbage_among_the_results_is_told(caplog: pytest.LogCaptureFixture) -> None:
    script = BatchScript(on_results=[Reply(body=b'nonsense\n{"custom_id":"c1","response":null}')])
    async with batch_client_lab("openai", batch_default=script) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        with caplog.at_level(logging.WARNING, "orchestra.batches"):
            assert kinds(await everything(lab.client, state)) == {"c1": "unserved"}
        assert "1 unreadable" in caplog.text


# faults of the provider


async def test_a_file_that_is_seen_late() -> None:
    async with batch_client_lab("openai", file_delay=20.0) as lab:
        state = await lab.submit()
        assert state.key == "key-1"
        assert lab.slept == sorted(lab.slept)
        assert 20.0 <= sum(lab.slept) < 40.0
        assert asked(lab, "POST", "/files") == 1


async def test_a_file_that_is_never_seen() -> None:
    async with batch_client_lab("openai", file_delay=1e6) as lab:
        with pytest.raises(BatchNotFound, match="No such File"):
            await lab.submit()
        assert sum(lab.slept) == 60.0


async def test_a_refusal_is_not_tried_again() -> None:
    routes = {"POST /v1/batches": [Reply.error(400, "url_mismatch", message="another endpoint")]}
    async with batch_client_lab("openai", routes=routes) as lab:
        with pytest.raises(BatchRefused, match="another endpoint") as caught:
            await lab.submit()
        assert (caught.value.status, caught.value.code, lab.slept) == (400, "url_mismatch", [])


@BOTH
async def test_a_poll_that_fails_is_an_error_of_its_own(kind: str) -> None:
    script = BatchScript(on_poll=[Reply.error(503, headers={"retry-after": "7"}), Reply(drop=True)])
    async with batch_client_lab(kind, batch_default=script) as lab:
        state = await lab.submit()
        with pytest.raises(BatchBusy) as caught:
            await lab.client.poll(state.id)
        assert (caught.value.status, caught.value.retry_after) == (503, 7.0)
        with pytest.raises(ConnectionFailed):
            await lab.client.poll(state.id)
        assert (await lab.client.poll(state.id)).ended


@BOTH
async def test_a_batch_that_vanishes(kind: str) -> None:
    async with batch_client_lab(kind, batch_default=BatchScript(vanishes_after=10.0)) as lab:
        state = await lab.submit()
        lab.clock.now += 11
        with pytest.raises(BatchNotFound):
            await lab.client.poll(state.id)


@BOTH
async def test_results_that_come_late(kind: str) -> None:
    async with batch_client_lab(kind, batch_default=BatchScript(results_after=5.0)) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        with pytest.raises(BatchNotFound):
            await everything(lab.client, state)
        lab.clock.now += 6
        assert kinds(await everything(lab.client, state)) == dict.fromkeys(NAMES, "answered")


@BOTH
async def test_results_that_break_off_are_read_again(kind: str) -> None:
    async with batch_client_lab(kind, batch_default=BatchScript(on_results=[Reply(cut_after=100)])) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        with pytest.raises(ConnectionFailed):
            await everything(lab.client, state)
        assert kinds(await everything(lab.client, state)) == dict.fromkeys(NAMES, "answered")


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]"])
async def test_a_success_that_is_no_batch_may_be_one(body: bytes) -> None:
    async with batch_client_lab("openai", routes={"POST /v1/batches": [Reply(body=body)]}) as lab:
        with pytest.raises(ConnectionFailed) as caught:
            await lab.submit()
        assert caught.value.sent


async def test_nobody_is_there() -> None:
    async with batch_client_lab("openai") as lab:
        await lab.provider.kill()
        with pytest.raises(ConnectionFailed) as caught:
            await lab.submit()
        assert not caught.value.sent
        await lab.provider.start()


# whose key goes where


async def test_the_key_does_not_follow_results_to_another_host() -> None:
    async with ScriptedProvider() as foreign:
        script = BatchScript(results_origin=foreign.origin)
        async with batch_client_lab("anthropic", batch_default=script) as lab:
            state = await lab.client.poll((await lab.submit()).id)
            assert kinds(await everything(lab.client, state)) == dict.fromkeys(NAMES, "answered")
        assert foreign.log == []


@pytest.mark.parametrize("status", [302, 307])
async def test_a_redirect_to_another_host_is_followed_without_a_key(status: int) -> None:
    told = b'{"custom_id":"c1","response":{"status_code":200,"body":{}},"error":null}\n'
    async with ScriptedProvider(routes={"GET /store/*": [Reply(body=told)]}) as store:
        moved = Reply(status, {"location": f"{store.origin}/store/x?signed=1"}, b"")
        async with batch_client_lab("openai", routes={"GET /v1/files/*/content": [moved]}) as lab:
            state = await lab.client.poll((await lab.submit()).id)
            assert kinds(await everything(lab.client, state)) == {"c1": "answered"}
        (hit,) = store.log
        assert hit.query == {"signed": "1"}
        assert SECRET not in str(hit.headers)
        assert "authorization" not in hit.headers


@pytest.mark.parametrize("place", ["../../admin", "%2e%2e/%2e%2e/admin", "x/../../../admin", "..\\..\\admin"])
async def test_a_redirect_that_climbs_out_of_the_base_url_is_followed_without_a_key(place: str) -> None:
    async with batch_client_lab("openai") as lab:
        state = await lab.client.poll((await lab.submit()).id)
        moved = Reply(307, {"location": f"{lab.provider.base_url}/{place}"}, b"")
        lab.provider.routes["GET /v1/files/*/content"] = type(lab.provider.script)([moved])
        with pytest.raises(BatchRefused):
            await everything(lab.client, state)
        assert SECRET not in str(lab.provider.log[-1].headers)
        assert lab.provider.log[-2].path.endswith("/content")


async def test_a_redirect_below_the_base_url_keeps_the_key() -> None:
    async with batch_client_lab("openai") as lab:
        state = await lab.client.poll((await lab.submit()).id)
        moved = Reply(307, {"location": f"/v1/files/{state.files[0]}/content?again=1"}, b"")
        lab.provider.routes["GET /v1/files/*/content"] = type(lab.provider.script)([moved])
        assert kinds(await everything(lab.client, state)) == dict.fromkeys(NAMES, "answered")
        assert lab.provider.log[-1].query == {"again": "1"}
        assert lab.provider.log[-1].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("location", ["ftp://elsewhere/x", "http://[bad", "data:,x", ""])
async def test_a_redirect_to_nowhere_is_a_refusal(location: str) -> None:
    moved = Reply(302, {"location": location} if location else {}, b"")
    async with batch_client_lab("openai", routes={"GET /v1/files/*/content": [moved]}) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        with pytest.raises(BatchRefused, match="302"):
            await everything(lab.client, state)


async def test_redirects_come_to_an_end() -> None:
    moved = Reply(302, {"location": "/v1/files/f/content"}, b"")
    async with batch_client_lab("openai", routes={"GET /v1/files/*/content": [moved] * 10}) as lab:
        state = await lab.client.poll((await lab.submit()).id)
        with pytest.raises(BatchRefused, match="302"):
            await everything(lab.client, state)
        assert asked(lab, "GET", "/content") == 4


async def test_a_creation_is_never_led_elsewhere() -> None:
    async with ScriptedProvider() as foreign:
        moved = Reply(307, {"location": f"{foreign.origin}/v1/batches"}, b"")
        async with batch_client_lab("openai", routes={"POST /v1/batches": [moved]}) as lab:
            with pytest.raises(BatchRefused, match="307"):
                await lab.submit()
        assert foreign.log == []


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
async def test_no_error_quotes_a_key(status: int) -> None:
    reply = Reply.error(status, "c", message=f"Incorrect API key provided: {SECRET} (Bearer {SECRET})")
    async with batch_client_lab("openai", routes={"GET /v1/batches/b": [reply]}) as lab:
        with pytest.raises(ProviderError) as caught:
            await lab.client.poll("b")
        assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__dict__}"


@BOTH
async def test_a_callers_own_key_where_the_account_has_none(kind: str) -> None:
    named = {"openai": ("authorization", "Bearer a-callers-key"), "anthropic": ("x-api-key", "a-callers-key")}
    async with batch_client_lab(kind) as lab:
        state = await lab.submit(client=lab.other(api_key=None, headers=(named[kind],)))
        assert all("a-callers-key" in str(hit.headers) for hit in lab.provider.log)
        lab.provider.log.clear()
        await lab.other(headers=(named[kind],)).poll(state.id)  # an account's own key is used alone
        assert "a-callers-key" not in str(lab.provider.log[0].headers)


# files, and manners


async def test_a_file_is_removed() -> None:
    async with batch_client_lab("openai") as lab:
        lines, size = written(lab.form, order_for("openai"))
        file = await lab.client.upload(order_for("openai"), lines, size)
        await lab.client.delete_file(file)
        await lab.client.delete_file(file)
        assert asked(lab, "DELETE", file) == 2
    async with batch_client_lab("anthropic") as lab:
        await lab.client.delete_file("none")
        assert lab.provider.log == []


async def test_what_the_lines_raise_comes_out_as_it_is() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"{}\n"
        raise KeyError("the spool")

    async with batch_client_lab("openai") as lab:
        with pytest.raises(KeyError, match="the spool"):
            await lab.client.upload(order_for("openai"), broken, 300_000)


async def test_reading_may_be_given_up() -> None:
    async with batch_client_lab("openai") as lab:
        state = await lab.client.poll((await lab.submit(count=3000)).id)
        results = lab.client.results(state)
        assert await anext(results)
        await results.aclose()
        assert lab.wire.busy() == 0


async def test_polls_are_paced_together_and_in_turn() -> None:
    async with batch_client_lab("openai") as lab:
        states = [await lab.submit(order_for("openai", key=f"key-{number}")) for number in range(3)]
        client = BatchClient(account_for("openai", lab.base_url), lab.form, lab.wire, polls_per_second=2.0)
        loop = asyncio.get_running_loop()
        began, seen = loop.time(), list[str]()

        async def look(batch_id: str) -> None:
            await client.poll(batch_id)
            seen.append(batch_id)

        await asyncio.gather(*(look(state.id) for state in states))
        assert loop.time() - began >= 0.4
        assert seen[-1] == states[-1].id


async def test_a_key_of_an_account_never_leaves_its_origin() -> None:
    account = account_for("openai", "https://api.example:443/v1/")
    request = account.own_request("GET", "/batches?limit=1", (("authorization", "Bearer another"), ("x", "y")))
    assert request.url == "https://api.example/v1/batches?limit=1"
    assert request.headers == (("x", "y"), ("authorization", f"Bearer {SECRET}"))
    assert SECRET not in repr(request)


async def test_a_request_of_our_own_keeps_what_it_says_itself() -> None:
    order = order_for("anthropic")
    form = form_for("anthropic")
    lines, size = written(form, order, count=1)
    ask = form.create(replace(order, headers=(("anthropic-version", "9"),)), lines(), size)
    request = account_for("anthropic", "https://api.example").own_request("POST", ask.path, ask.headers, ask.body)
    assert [value for name, value in request.headers if name == "anthropic-version"] == ["9"]
    assert not isinstance(request.body, bytes)
    assert json.loads(b"".join([piece async for piece in request.body]))["requests"][0]["custom_id"] == "c0"
