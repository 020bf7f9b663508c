"""A model without a network, and a scheduler without an engine, for tests of the engine's books."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import zlib
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from devices import begins_by

from orchestra.localengine.config import EngineConfig, SchedulerName
from orchestra.localengine.engine import LocalEngine
from orchestra.localengine.request import SamplingParams
from orchestra.localengine.scheduling.apply import apply_plan, commit_step
from orchestra.localengine.scheduling.blocks import BlockPool
from orchestra.localengine.scheduling.classes import ClassLimits
from orchestra.localengine.scheduling.cost import StepCost
from orchestra.localengine.scheduling.draft import Draft
from orchestra.localengine.scheduling.schedulers import SCHEDULERS
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import StepBudget, StepPlan
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.step import RowInput, RowOutput, StepAbandoned
from orchestra.policies.traffic import TrafficClass

INTERACTIVE, BULK = TrafficClass.INTERACTIVE, TrafficClass.BULK
GREEDY = SamplingParams(temperature=0)
VOCABULARY = 1000
LAYERS = 3
POISON = -1
make_plan = Draft.plan


def next_token(history: Ids[int]) -> int:
    """What the fake model says after ``history``: depends on every token and on its place."""
    return zlib.crc32(b",".join(b"%d" % token for token in history)) % VOCABULARY


def oracle(prompt: Ids[int], max_tokens: int) -> list[int]:
    """The whole greedy output of ``prompt`` run alone."""
    history = list(prompt)
    for _ in range(max_tokens):
        history.append(next_token(history))
    return history[len(prompt) :]


def tokens(count: int, seed: int = 0) -> list[int]:
    """A prompt; of one seed, the shorter is the beginning of the longer."""
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(count)]


class FakeRunner:
    """A paged memory of tokens. It reads each history through the block table: a wrong table gives wrong text.

    Cells that were never written hold a poison that no prompt contains.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.memory = [[POISON] * block_size for _ in range(num_blocks)]
        self.rows: list[RowInput] = []

    def poison(self, blocks: Ids[int]) -> None:
        """Nobody may read what these hold."""
        for block in blocks:
            self.memory[block] = [POISON] * self.block_size

    def run(self, rows: Ids[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        self.rows = list(rows)
        abandoned = abandon is not None and any(abandon() for _ in range(LAYERS))
        outputs = []
        for row in rows:
            for position, token in enumerate(row.token_ids, row.start):
                block, offset = divmod(position, self.block_size)
                # what the first layers alone have computed is of no use to anybody
                self.memory[row.block_table[block]][offset] = POISON if abandoned else token
        if abandoned:
            raise StepAbandoned
        for row in rows:
            if row.sampling is not None:
                end = row.start + len(row.token_ids)
                cells = (divmod(position, self.block_size) for position in range(end))
                history = [self.memory[row.block_table[block]][offset] for block, offset in cells]
                outputs.append(RowOutput(row.request_id, row.epoch, next_token(history)))
        return outputs


class PoisoningPool(BlockPool):
    """Spoils every block that it hands out: who reads what an earlier owner left there is found out."""

    def __init__(self, num_blocks: int, block_size: int, runner: FakeRunner, *, caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, caching=caching)
        self._runner = runner

    def allocate(self, count: int, traffic: TrafficClass) -> list[int]:
        blocks = super().allocate(count, traffic)
        self._runner.poison(blocks)
        return blocks


class Lab:
    """Drives a scheduler step by step over the fake model, or ``runner``, and checks the books after each step.

    ``answer`` is what the model says to a prompt alone: (prompt, max_tokens) to token ids.
    """

    def __init__(
        self,
        *,
        blocks: int = 64,
        block_size: int = 4,
        slots: int = 8,
        tokens: int = 64,
        cost: StepCost | None = None,
        ttft: float = 1e9,
        tpot: float = 1e9,
        stall: int = 200,
        runner: Any = None,
        answer: Callable[[Ids[int], int], list[int]] = oracle,
        caching: bool = True,
        scheduler: SchedulerName = "classes",
        abandon: Callable[[], bool] | None = None,
        **limits: float,
    ) -> None:
        self.runner = runner or FakeRunner(blocks, block_size)
        self.state = SchedulerState(
            ClassLimits(max_num_seqs=slots, num_blocks=blocks, **limits),  # type: ignore[arg-type]
            PoisoningPool(blocks, block_size, self.runner, caching=caching),
        )
        self.answer = answer
        self.budget = StepBudget(tokens, ttft, tpot)
        self.cost = cost or StepCost()
        self.outputs: dict[int, list[int]] = {}
        self.asked: dict[int, tuple[list[int], int]] = {}
        self.first_token: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self.plans: list[StepPlan] = []
        self.steps = 0
        self.abandoned = 0
        self._schedule = SCHEDULERS[scheduler]
        self._abandon = abandon
        self.lost: dict[int, Sequence] = {}
        self._stall = stall
        self._writers: dict[int, str | None] = {}
        self._progress: dict[int, int] = {}

    def add(
        self,
        traffic: TrafficClass,
        prompt: int | list[int],
        max_tokens: int = 4,
        kin: Sequence | None = None,
        salt: str | None = None,
    ) -> Sequence:
        """``kin``: it is another completion of that one's prompt, and has its salt."""
        number = len(self.asked)
        ids = prompt if isinstance(prompt, list) else [(7 * number + i) % VOCABULARY for i in range(prompt)]
        seq = Sequence(
            request_id=number,
            traffic=traffic,
            arrival=number,
            token_ids=list(ids),
            max_tokens=max_tokens,
            sampling=replace(GREEDY, max_tokens=max_tokens),
            cache_salt=salt if kin is None else kin.cache_salt,
        )
        if kin is not None:
            kin.kin = seq.kin = [*(kin.kin or [kin]), seq]
            for relative in seq.kin:
                relative.kin = seq.kin
        self.state.add(seq)
        self.asked[number] = (list(ids), max_tokens)
        self._progress[number] = self.steps
        return seq

    def cancel(self, request_id: int) -> None:
        self.state.remove(request_id)
        self._progress.pop(request_id, None)

    def shrink(self, count: int) -> list[Sequence]:
        """Let the pool give up blocks; return the requests that were lost by it."""
        lost = self.state.shrink(count)
        for seq in lost:
            assert seq.max_length > self.state.capacity(seq.traffic), "it could still have run"
            self.lost[seq.request_id] = seq
            self._progress.pop(seq.request_id, None)
        self.state.check()
        return lost

    def step(self) -> StepPlan:
        state = self.state
        before = fingerprint(state)
        plan, draft = self._plan()
        assert fingerprint(state) == before, "planning changed the state"
        assert self._schedule(state, self.budget, self.cost) == plan, "planning is not deterministic"
        free = state.pool.num_free
        rows = apply_plan(state, plan)
        self.steps += 1
        check_plan(state, plan, self.budget, free_before=free)
        state.check()
        check_books(state, draft)
        self._check_salts(rows)
        try:
            outputs = self.runner.run(rows, self._abandon)
        except StepAbandoned:
            self.abandoned += 1
            self.plans.append(plan)
            return plan
        for seq, output in commit_step(state, plan, outputs):
            self.first_token.setdefault(seq.request_id, self.steps)
            assert output.token_id == seq.token_ids[-1]
            if seq.num_output == seq.max_tokens:
                self.outputs[seq.request_id] = seq.output_ids
                prompt, limit = self.asked[seq.request_id]
                assert seq.output_ids == self.answer(prompt, limit), f"{seq.request_id} differs from its run alone"
                self.state.growth.observe(seq)
                self.cancel(seq.request_id)
        state.check()
        for row in plan.rows:
            self.computed[row.request_id] = self.computed.get(row.request_id, 0) + row.count
            if row.request_id in self._progress:
                self._progress[row.request_id] = self.steps
        for request_id, last in self._progress.items():
            assert self.steps - last < self._stall, f"request {request_id} stalls"
        self.plans.append(plan)
        return plan

    def run(self, steps: int = 10_000) -> int:
        """Step until nothing is left to do; return how many steps that took."""
        for count in range(steps):
            if not self.state.has_work:
                return count
            assert self.step().rows, f"work is left and nothing runs: {self.plans[-1].held}"
        raise AssertionError(f"not done after {steps} steps")

    def rows(self, plan: StepPlan, traffic: TrafficClass | None = None) -> dict[int, int]:
        """Tokens by request id in a plan that was just applied, of one class or of both."""
        running = self.state.running
        return {
            row.request_id: row.count
            for row in plan.rows
            if traffic is None or row.request_id in running[traffic] or self._class(row.request_id) is traffic
        }

    def _plan(self) -> tuple[StepPlan, Draft]:
        """The next plan, and the books that it was made with."""
        drafts: list[Draft] = []
        with patch.object(Draft, "plan", lambda draft: drafts.append(draft) or make_plan(draft)):
            plan = self._schedule(self.state, self.budget, self.cost)
        return plan, drafts[-1]

    def _check_salts(self, rows: Ids[RowInput]) -> None:
        """Nobody reads what was written under another salt."""
        size = self.state.pool.block_size
        salts = {row.request_id: self.state.get(row.request_id).cache_salt for row in rows}
        for row in rows:
            first, last = row.start // size, (row.start + len(row.token_ids) - 1) // size
            self._writers.update(dict.fromkeys(row.block_table[first : last + 1], salts[row.request_id]))
        for row in rows:
            mine = salts[row.request_id]
            read = row.block_table[: row.start // size]
            assert all(self._writers.get(block, mine) == mine for block in read), "a salt leaks"

    def _class(self, request_id: int) -> TrafficClass | None:
        seq = self.state.find(request_id)
        return seq.traffic if seq else None


def fingerprint(state: SchedulerState) -> object:
    """Everything in the state that a plan must not touch."""
    return (
        [
            (s.request_id, *s.token_ids, s.num_computed, *s.block_table, s.epoch, s.displacements, s.last_turn)
            for s in state.sequences()
        ],
        [list(queue) for queue in (*state.running.values(), *state.waiting.values())],
        state.pool.num_free,
        state.bulk_owed,
        state.turns,
    )


def check_books(state: SchedulerState, draft: Draft) -> None:
    """What was planned with is what came of it, once the plan has been applied and before anything is computed."""
    pool = state.pool
    assert draft.free == pool.num_free, f"{draft.free} blocks were to be free, and {pool.num_free} are"
    assert min(draft.kept, draft.free) == pool.num_cached(INTERACTIVE), (
        "interactive's cached blocks are miscounted"
    )
    assert draft.blocks == {c: pool.num_held(c) for c in TrafficClass}, "a class holds other than was planned"
    assert {c: list(mine) for c, mine in draft.running.items()} == {
        c: list(mine) for c, mine in state.running.items()
    }


def check_plan(state: SchedulerState, plan: StepPlan, budget: StepBudget, *, free_before: int) -> None:
    """The invariants of a plan that was just applied."""
    ids = [row.request_id for row in plan.rows]
    assert len(set(ids)) == len(ids), "two rows of one request"
    assert not set(ids) & set(plan.displaced), "a displaced request has a row"
    assert not set(plan.admitted) & set(plan.displaced), "a request is admitted and displaced in one step"
    assert sum(row.count for row in plan.rows) <= budget.tokens, "more tokens than the step has"
    for row in plan.rows:
        seq = state.find(row.request_id)
        assert seq is not None
        assert row.request_id in state.running[seq.traffic], "a row of a request that does not run"
        assert row.epoch == seq.epoch
        assert row.start == seq.num_computed
        assert 1 <= row.count <= seq.remaining_prefill
        assert row.sampled == (row.start + row.count == len(seq))
        assert len(seq.block_table) >= state.pool.blocks_for(row.start + row.count)


class FakeTokenizer:
    """One character per token: id 32 is a space, and so on. Ids 0 and 1 are control tokens; 1 ends the output."""

    vocab_size = VOCABULARY
    eos_ids = frozenset({1})

    def encode_prompt(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def is_special(self, token_id: int) -> bool:
        return token_id < 2


class SlowRunner(FakeRunner):
    """Takes its time, and can be told to fail or to stand still."""

    def __init__(self, num_blocks: int, block_size: int, *, seconds: float = 0.0) -> None:
        super().__init__(num_blocks, block_size)
        self.seconds = seconds
        self.fail_next = False
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.steps = 0
        self.closes_at = -1  # the gate, after so many steps
        self.closed = False

    def run(self, rows: Ids[RowInput], abandon: Callable[[], bool] | None = None) -> list[RowOutput]:
        self.in_step.set()
        if self.seconds:
            time.sleep(self.seconds)
        assert self.gate.wait(50)
        self.steps += 1
        if self.fail_next:
            self.fail_next = False
            raise ArithmeticError("the model broke")
        outputs = super().run(rows, abandon)
        self.in_step.clear()
        if self.steps == self.closes_at:
            self.gate.clear()
        return outputs

    def close(self) -> None:
        self.closed = True


class Pause:
    """Lets a runner, whichever it is, stand still before the first step at which ``when`` holds: then the pause is
    ``reached``, and the runner goes on once it is ``over``."""

    def __init__(self, runner: Any, when: Callable[[], object]) -> None:
        self.reached, self.over = threading.Event(), threading.Event()
        begin = getattr(runner, begins_by(runner))

        def held(*args: Any) -> Any:
            if not self.over.is_set() and when():
                self.reached.set()
                assert self.over.wait(50)
            return begin(*args)

        setattr(runner, begins_by(runner), held)


class Bench:
    """A `LocalEngine` over the fake model, with the runner at hand."""

    def __init__(
        self, config: EngineConfig | None = None, *, blocks: int = 64, context: int = 512, seconds: float = 0.0
    ) -> None:
        self.config = config or EngineConfig(block_size=4)
        self.blocks, self.context, self.seconds = blocks, context, seconds
        self.runners: list[SlowRunner] = []
        self.engine = LocalEngine(self.open_model, self.config)

    @property
    def runner(self) -> SlowRunner:
        return self.runners[-1]

    def open_model(self, config: EngineConfig) -> LoadedModel:
        runner = SlowRunner(self.blocks, config.block_size, seconds=self.seconds)
        self.runners.append(runner)
        return LoadedModel(
            name="fake",
            runner=runner,
            tokenizer=FakeTokenizer(),
            encode_chat=lambda messages: [ord(char) for m in messages for char in str(m["content"])],
            context=self.context,
            threads=1,
        )

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until ``condition`` holds."""
        async with asyncio.timeout(30):  # which bounds a hang, and no machine
            while not condition():  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.001)

    def known(self, traffic: str) -> int:
        """Requests of a class that run or wait."""
        stats = self.engine.stats()
        return stats["running"][traffic] + stats["waiting"][traffic]

    async def stand_still(self) -> None:
        """Start, and let the next step wait for the runner's gate."""
        await self.engine.start()
        self.runner.in_step.clear()
        self.runner.gate.clear()

    async def run_on(self, steps: int) -> None:
        """Let it make so many steps, and stand still in the next. There must be work for them."""
        runner = self.runner
        runner.closes_at = runner.steps + steps
        runner.gate.set()
        await self.until(lambda: not runner.gate.is_set() and runner.in_step.is_set())

    async def idle(self) -> dict[str, Any]:
        """Wait until the engine holds nothing; return its statistics."""
        for _ in range(5000):
            stats = self.engine.stats()
            if stats["blocks"]["free"] == self.blocks and not any(stats["waiting"].values()):
                return stats
            await asyncio.sleep(0.01)
        raise AssertionError(f"the engine still holds something: {stats}")


def spoken(token_ids: Ids[int]) -> str:
    """The text of output tokens."""
    return "".join(chr(token) for token in token_ids if token > 1)


def heard(prompt: Ids[int], max_tokens: int) -> list[int]:
    """What the engine should answer: the oracle's output up to the end token."""
    output = oracle(prompt, max_tokens)
    return output[: output.index(1) + 1] if 1 in output else output
