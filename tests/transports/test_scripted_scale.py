"""The scripted provider in a process of its own: many lines in little memory, its bills, faults and kills."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from batch_lab import CHAT, batch_lab, jsonl, line, params
from dispatch_lab import eventually
from hypothesis import given
from hypothesis import strategies as st

from orchestra.testing import BatchFaults, BatchScript, Bill, Bills, Reply, ScriptedProvider, request_key
from orchestra.testing.content import Content, Spool, joined
from orchestra.testing.form_data import form_fields
from orchestra.testing.roll import Line, Roll

MEGABYTE = 1 << 20


@contextmanager
def serving(*options: str) -> Iterator[tuple[httpx2.Client, str, int]]:
    """Serve in another process. Yields a client of its base URL, where its bills are, and its process id."""
    command = [sys.executable, "-m", "orchestra.testing", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            with httpx2.Client(base_url=told["base_url"], trust_env=False, timeout=60) as client:
                yield client, told["bills"], process.pid
        finally:
            process.kill()


def memory(process: int) -> int:
    """Return the most bytes that a process ever had."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def submit(client: httpx2.Client, content: bytes | Path) -> dict[str, Any]:
    with open(content, "rb") if isinstance(content, Path) else _Held(content) as file:
        uploaded = client.post("/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", file)})
    asked = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    return dict(client.post("/batches", json=asked).json())


class _Held:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __enter__(self) -> bytes:
        return self._content

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells its memory in /proc only on Linux")
def test_large_batches_take_little_memory(tmp_path: Path):
    padding = "x" * 4000
    path = tmp_path / "lines.jsonl"
    with path.open("wb") as file:
        file.writelines(jsonl([line(f"id-{number:09}", f"{number} {padding}")]) for number in range(6000))
    with serving("--text", "y" * 2000) as (client, bills, process):
        submit(client, jsonl([line("warm")]))
        before = memory(process)
        for _ in range(2):
            told = submit(client, path)
            told = client.get(f"/batches/{told['id']}").json()
            with client.stream("GET", f"/files/{told['output_file_id']}/content") as answer:
                size = sum(len(piece) for piece in answer.iter_raw())
            assert size > 12 * MEGABYTE
        told = client.get(bills).json()
        assert (told["batch"], told["files"], told["batches"], told["lines"]) == (12001, 3, 3, 12001)
        assert len(told["ids_paid_twice"]) == len(told["requests_paid_twice"]) == 6000
        assert memory(process) - before < 16 * MEGABYTE  # the uploads alone are 50


def test_a_lines_share_of_memory_is_small():
    content = Content(b"[]")
    roll = Roll(content, lambda raw: Line("x", {}))
    for number in range(1000):
        roll.add(0, 2, Line(str(number), {"n": number}), 1, 1)
    arrays = [value for value in vars(roll).values() if isinstance(value, array)]
    assert sum(one.itemsize for one in arrays) <= 36
    assert all(len(one) == 1000 for one in arrays)
    assert not any(isinstance(value, list | set) for value in vars(roll).values())


def test_it_is_driven_from_outside():
    with serving("--batch-seconds", "1000") as (client, bills, _):
        control = bills.removesuffix("bills")
        batch = submit(client, jsonl([line("a"), line("b")]))
        assert client.get(f"/batches/{batch['id']}").json()["status"] in ("validating", "in_progress")
        assert client.post(f"{control}batches", json={"running": 0, "answered": 1, "end": "expired"}).json() == {}
        batch = submit(client, jsonl([line("a"), line("b")]))
        batch = client.get(f"/batches/{batch['id']}").json()
        assert (batch["status"], batch["request_counts"]["completed"]) == ("expired", 1)
        client.post("/chat/completions", json=params("to a"))
        told = client.get(bills).json()
        assert (told["sync"], told["batch"], told["background"], told["total"]) == (1, 1, 0, 2)
        twice = {request_key(params("to a")): {"sync": 1, "batch": 1, "background": 0}}
        assert (told["requests_paid_twice"], told["ids_paid_twice"]) == (twice, {})
        assert client.post(f"{control}faults", json={"lost_creations": 1}).json()["lost_creations"] == 1
        with pytest.raises(httpx2.TransportError):
            submit(client, jsonl([line("a")]))
        assert client.get(bills).json()["faults"] == {"lost_creations": 1}
        for path, body in (("batches", {"replies": {}}), ("batches", {"nothing": 1}), ("faults", {"seed": []})):
            wrong = client.post(f"{control}{path}", json=body)
            assert (wrong.status_code, path) == (400, path)
        assert client.post(f"{control}batches", json={"on_create": {"delay": 0.05}}).json() == {}
        began = time.monotonic()
        submit(client, jsonl([line("a")]))
        assert time.monotonic() - began >= 0.05
        assert client.post(f"{control}reset").json() == {}
        told = client.get(bills).json()
        assert (told["total"], told["files"], told["batches"], told["faults"]) == (0, 0, 0, {})
        assert client.get("/batches").json()["data"] == []
        assert client.get(f"{control}nothing").status_code == 404
        assert client.post(f"{control}kill", params={"seconds": "x"}).status_code == 400


async def test_it_can_be_killed_for_a_while():
    async with ScriptedProvider() as provider, httpx2.AsyncClient(trust_env=False) as client:
        kill = f"{provider.origin}/__orchestra/kill"
        answer = await client.post(kill, params={"seconds": "0.05"})
        assert answer.json() == {"seconds": 0.05}
        assert provider._control._killing is not None
        await provider._control._killing
        assert (await client.get(f"{provider.base_url}/models")).status_code == 200, "it has come back"
        await client.post(kill, params={"seconds": "3000"})
        await eventually(lambda: provider._listener is None)
        with pytest.raises(httpx2.TransportError):
            await client.get(f"{provider.base_url}/models")
        provider._control.close()
        await provider.start()
        assert (await client.get(f"{provider.origin}/__orchestra/bills")).json()["total"] == 0
        assert [hit.path for hit in provider.log if "__" in hit.path] == []


async def test_who_is_not_on_this_machine_finds_no_control():
    from orchestra.testing import Hit
    from orchestra.testing.control import Control

    hit = Hit(0.0, "GET", "/__orchestra/bills", {}, b"", 1)
    assert [Control.serves(hit, peer) for peer in ("127.0.0.1", "::1", "10.0.0.1", None)] == [
        True,
        True,
        False,
        False,
    ]


async def test_faults_are_the_same_for_the_same_seed():
    async def seen(seed: int) -> list[int]:
        faults = BatchFaults(refused_polls=0.5, seed=seed)
        async with batch_lab(batch_faults=faults) as lab:
            batch = await lab.submit([line("a")])
            return [(await lab.get(f"/v1/batches/{batch['id']}")).status_code for _ in range(24)]

    first = await seen(1)
    assert first == await seen(1) != await seen(2)
    assert set(first) == {200, 503}


async def test_lost_uploads_and_cut_results():
    async with batch_lab(batch_faults=BatchFaults(lost_uploads=1.0)) as lab:
        with pytest.raises(httpx2.TransportError):
            await lab.upload(jsonl([line("a")]))
        assert len((await lab.get("/v1/files")).json()["data"]) == 1
        lab.provider.batch_faults = BatchFaults(cut_results=1.0)
        batch = await lab.poll((await lab.submit([line("a")]))["id"])
        with pytest.raises(httpx2.TransportError):
            await lab.results(batch["output_file_id"])
        lines = [line(f"l{number}") for number in range(1000)]
        batch = await lab.poll((await lab.submit(lines))["id"])
        with pytest.raises(httpx2.TransportError):
            await lab.results(batch["output_file_id"])
        lab.provider.batch_faults = BatchFaults()
        assert len(await lab.results(batch["output_file_id"])) == 1000
        assert lab.provider.counts()["faults"] == {"lost_uploads": 1, "cut_results": 2}


async def test_a_script_goes_before_the_faults():
    script = BatchScript(on_create=Reply(delay=0.001), on_poll=[Reply()], on_results=[Reply()])
    faults = BatchFaults(lost_creations=1.0, refused_polls=1.0, cut_results=1.0)
    async with batch_lab(batch_default=script, batch_faults=faults) as lab:
        batch = await lab.poll((await lab.submit([line("a")]))["id"])
        assert len(await lab.results(batch["output_file_id"])) == 1


@pytest.mark.parametrize("wrong", [{"lost_creations": 1.5}, {"cut_results": float("nan")}])
def test_no_such_faults(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BatchFaults(**wrong)  # type: ignore[arg-type]


async def test_a_creation_is_carried_out_though_its_client_goes_away():
    lines = [line(f"l{number}") for number in range(5000)]
    async with batch_lab() as lab:
        file = await lab.upload(jsonl(lines))
        creating = asyncio.create_task(lab.create(file["id"]))
        await eventually(lambda: len(lab.provider.log) == 2)
        creating.cancel()
        for _ in range(4000):
            await asyncio.sleep(0.01)
            if lab.provider.billed.all.batch:
                break
        assert lab.provider.billed.all == Bill(batch=5000)


async def test_others_are_served_while_results_are_written():
    lines = [line(f"l{number}") for number in range(5000)]
    async with batch_lab() as lab:
        batch = await lab.poll((await lab.submit(lines))["id"])
        results = asyncio.create_task(lab.results(batch["output_file_id"]))
        served = 0
        while not results.done():
            assert (await lab.get("/v1/models")).status_code == 200
            served += 1
        assert served > 1
        found = await results
        assert [one["custom_id"] for one in found] == [one["custom_id"] for one in lines]
        size = (await lab.get(f"/v1/files/{batch['output_file_id']}")).json()["bytes"]
        assert size == len((await lab.get(f"/v1/files/{batch['output_file_id']}/content")).content)


PIECES = st.lists(st.binary(max_size=60), max_size=12)


@given(pieces=PIECES, large=st.booleans())
def test_content_is_what_was_written(pieces: list[bytes], large: bool):
    spool = Spool()
    head = b"\n".join([b"h" * 999] * (1 + MEGABYTE // 1000)) if large else b""
    for piece in (head, *pieces):
        spool.write(piece)
    content, whole = spool.content(), head + b"".join(pieces)
    assert (content.size, content.read(), b"".join(content.pieces())) == (len(whole), whole, whole)
    start, stop = len(whole) // 3, len(whole) - len(whole) // 4
    part = content.part(start, stop)
    assert part.read() == whole[start:stop]
    assert content.read(start, 7) == whole[start : start + 7]
    lines = list(content.lines())
    assert [whole[at : at + len(one)] for at, one in lines] == [one for _, one in lines]
    assert b"\n".join(one for _, one in lines) == whole.removesuffix(b"\n")


@given(before=st.integers(-40, 40), needle=st.binary(min_size=1, max_size=12))
def test_what_stands_across_pieces_is_found(before: int, needle: bytes):
    whole = b"-" * ((1 << 18) + before) + needle + b"-" * 50
    assert Content(whole).find(needle, 10) == whole.find(needle, 10)
    assert Content(whole).find(needle + b"?") == -1


@given(st.lists(st.text(max_size=9), max_size=9))
def test_lines_joined_are_all_there(lines: list[str]):
    lines = [one.encode("utf-8", "replace").decode() for one in lines]
    assert b"".join(joined(lines)) == "".join(lines).encode()


@given(value=st.binary(max_size=200), name=st.text("abc", min_size=1, max_size=5))
def test_a_form_is_read_as_it_was_written(value: bytes, name: str):
    if b"--limit" in value:
        return
    part = f'content-disposition: form-data; name="{name}"; filename="f.jsonl"\r\n\r\n'.encode() + value
    body = b"--limit\r\n" + part + b"\r\n--limit--\r\n"
    fields = form_fields("multipart/form-data; boundary=limit", Content(body))
    assert {key: (field.value, field.filename) for key, field in fields.items()} == {name: (value, "f.jsonl")}


@given(seed=st.integers(0, 10_000))
def test_bills_agree_with_counting(seed: int):
    dice = random.Random(seed)
    bills, sync, batch = Bills(), [], []
    for _ in range(dice.randrange(4)):
        payloads = [params(str(dice.randrange(6))) for _ in range(dice.randrange(1, 9))]
        lines = [line(f"id{dice.randrange(9)}", body=payload) for payload in payloads]
        spool = Spool()
        roll_lines = [json.dumps(one).encode() for one in lines]
        starts = [sum(map(len, roll_lines[:number])) for number in range(len(lines))]
        for raw in roll_lines:
            spool.write(raw)
        roll = Roll(spool.content(), lambda raw: Line(json.loads(raw)["custom_id"], json.loads(raw)["body"]))
        for start, raw, one in zip(starts, roll_lines, lines, strict=True):
            roll.add(start, len(raw), Line(one["custom_id"], one["body"]), 1, 1)
        until = dice.randrange(len(lines) + 1)
        unpaid = {position for position in range(until) if dice.random() < 0.2}
        bills.add_lines(roll, until, unpaid)
        batch += [one for position, one in enumerate(lines[:until]) if position not in unpaid]
        read = roll.reader()
        order = list(range(len(lines)))
        if dice.random() < 0.5:
            dice.shuffle(order)
        assert [read(position).custom_id for position in order] == [
            lines[position]["custom_id"] for position in order
        ]
    for _ in range(dice.randrange(6)):
        sync.append(params(str(dice.randrange(6))))
        bills.add_call({**sync[-1], "stream": True, "service_tier": "flex"})
    asked = [request_key(payload) for payload in (*sync, *(one["body"] for one in batch))]
    names = [one["custom_id"] for one in batch]
    assert bills.all == Bill(sync=len(sync), batch=len(batch))
    assert bills.ids_paid_twice() == {name: names.count(name) for name in names if names.count(name) > 1}
    twice = bills.requests_paid_twice()
    assert {key: bill.total for key, bill in twice.items()} == {
        key: asked.count(key) for key in asked if asked.count(key) > 1
    }
    for number in range(6):
        in_batches = sum(one["body"] == params(str(number)) for one in batch)
        assert bills.of(params(str(number))) == Bill(sync=sync.count(params(str(number))), batch=in_batches)
    assert [bills.of_id(name) for name in names] == [names.count(name) for name in names]
