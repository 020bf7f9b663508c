"""The thread that owns the model and runs the step loop."""

from __future__ import annotations

import atexit
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestra.localengine.config import EngineConfig
from orchestra.localengine.errors import EngineBusy, EngineDied, EngineError, PromptTooLong
from orchestra.localengine.events import EventBus
from orchestra.localengine.execution.step_queue import StepQueue
from orchestra.localengine.scheduling.abandonment import Abandonment
from orchestra.localengine.scheduling.ahead import can_be_late, plan_ahead
from orchestra.localengine.scheduling.apply import apply_plan, commit_step
from orchestra.localengine.scheduling.blocks import BlockPool
from orchestra.localengine.scheduling.classes import ClassLimits
from orchestra.localengine.scheduling.cost import CostModel, StepCost
from orchestra.localengine.scheduling.schedulers import SCHEDULERS
from orchestra.localengine.scheduling.sequence import Sequence as ScheduledSequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import StepBudget, StepPlan
from orchestra.localengine.service.endings import Death, closed, forget_frames, told
from orchestra.localengine.service.generation import Generation
from orchestra.localengine.service.loading import LoadedModel
from orchestra.localengine.service.own_process import claim_process
from orchestra.localengine.service.stream import waking_together
from orchestra.localengine.service.telemetry import Telemetry
from orchestra.localengine.settled_config import SettledConfig
from orchestra.localengine.step import RowOutput, StepAbandoned, StepOutOfMemory
from orchestra.localengine.step_record import StepRecord
from orchestra.policies.traffic import TrafficClass

__all__ = ["Worker"]

_log = logging.getLogger(__name__)

_EXIT_SECONDS = 10.0


@dataclass(slots=True)
class _Flight:
    """A step under way: its plan, what the runner knows it by, and when the device began with it."""

    plan: StepPlan
    step: object
    began: float
    interactive: int  # of its rows


class Worker:
    """Loads the model in a thread of its own, and there runs steps for as long as there is work.

    All scheduling state belongs to that thread; others reach it by commands in a queue. `submit`, `cancel` and
    `stop` may be called from any thread. A worker runs once; a new one takes its place after the end.
    """

    def __init__(
        self, open_model: Callable[[EngineConfig], LoadedModel], config: EngineConfig, events: EventBus
    ) -> None:
        self.config = SettledConfig.on_cpu(config)  # until it is known where the model is
        self.telemetry = Telemetry(events)
        self.ready: Future[LoadedModel] = Future()
        self.ended = False
        # SimpleQueue.put is reentrant: a stream's finalizer may run inside any other call, even a put
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # loading is the first command, and nothing else keeps `open_model`, which may lead back to the engine
        self._commands.put(lambda: self._load(open_model, config))
        self._lock = threading.Lock()
        self._inbox = dict.fromkeys(TrafficClass, 0)
        self._why_ended: Callable[[], EngineError] = closed
        self.stopping = False
        self._draining = False
        self._model: LoadedModel | None = None
        self._limits: ClassLimits | None = None
        self._state: SchedulerState | None = None
        self._live: dict[int, Generation] = {}
        self._followers: dict[int, list[ScheduledSequence]] = {}  # of each first completion that is yet to start
        self._arrivals = 0
        self._cost = CostModel()
        self._schedule = SCHEDULERS[config.scheduler]
        self._unseen = 0  # interactive prompts that were submitted, and that no plan knows yet
        # what was drawn, and is delivered while the next step is computed
        self._late: list[tuple[ScheduledSequence, RowOutput, float]] = []
        self._flight: _Flight | None = None
        self._short_of_memory = False  # the latest step found too little
        self._abandonment = Abandonment(lambda: self._unseen > 0, time.monotonic)
        self._thread = threading.Thread(target=self._run, name="orchestra-engine", daemon=True)
        claim_process()
        _workers.add(self)
        self._thread.start()

    # From any thread

    def submit(self, generations: Sequence[Generation]) -> None:
        """Let the completions of a prompt wait for their turn. Raises EngineBusy, or what ended the engine.

        The first computes the prompt; the others follow when it has, and share that.
        """
        seq = generations[0].seq
        with self._lock:
            if self.ended or self.stopping:
                raise self._why_ended()
            waiting = self._inbox[seq.traffic] + self._num_waiting(seq.traffic)
            if self.config.max_waiting is not None and waiting >= self.config.max_waiting:
                self.telemetry.count("refused")
                raise EngineBusy(
                    f"{waiting} {seq.traffic} requests wait already (max_waiting = {self.config.max_waiting}): "
                    "try again later"
                )
            self._inbox[seq.traffic] += len(generations)
            self._unseen += seq.traffic is TrafficClass.INTERACTIVE
            self._commands.put(lambda: self._add(generations))

    def cancel(self, request_id: int) -> None:
        """Free what the request holds before the next step. Harmless where it has ended. Takes no lock."""
        self._commands.put(lambda: self._cancel(request_id))

    def stop(self, *, drain: bool = False) -> None:
        """Take no more requests and end: after those at hand are done (``drain``), or after the current step.

        Takes no lock: the engine's finalizer calls it.
        """
        self._draining = drain
        self.stopping = True
        self._commands.put(_nothing)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        self._thread.join(timeout)

    def capacity(self, traffic: TrafficClass) -> int:
        """The most tokens that one request of this class can have. Known once the model is ready."""
        return self._limits.blocks(traffic) * self.config.block_size if self._limits else 0

    def stats(self) -> dict[str, Any]:
        """What the engine is doing and has done, as plain data."""
        state, cost = self._state, self._cost.cost
        pool = state.pool if state else None
        return {
            "slots": self.config.max_num_seqs,
            "step_tokens": self.config.step_tokens,
            "running": {str(c): len(state.running[c]) if state else 0 for c in TrafficClass},
            "waiting": {str(c): self._inbox[c] + self._num_waiting(c) for c in TrafficClass},
            "blocks": {
                "total": pool.num_blocks if pool else 0,
                "free": pool.num_free if pool else 0,
                "cached": {str(c): pool.num_cached(c) if pool else 0 for c in TrafficClass},
                "held": {str(c): pool.num_held(c) if pool else 0 for c in TrafficClass},
                "size": self.config.block_size,
            },
            "evictions": pool.evictions if pool else 0,
            **self.telemetry.stats(),
            "step_cost": {
                "base": cost.base,
                "per_prefill_token": cost.per_prefill_token,
                "per_decode_row": cost.per_decode_row,
                "per_kv_token": cost.per_kv_token,
            },
        }

    def _num_waiting(self, traffic: TrafficClass) -> int:
        state = self._state  # which the end takes away at any moment
        return len(state.waiting[traffic]) if state else 0

    # In the worker's thread

    def _run(self) -> None:
        why: Callable[[], EngineError] = closed
        try:
            self._commands.get()()
            if self._model is not None and self._state is not None:
                self._loop(self._state)
        except BaseException as error:
            why = Death(error)
            forget_frames(error)
            with suppress(Exception):  # what was drawn before is read first
                if self._state is not None:
                    self._deliver_late(self._state)
        self._end(why)

    def _load(self, open_model: Callable[[EngineConfig], LoadedModel], config: EngineConfig) -> None:
        try:
            model = open_model(config)
            self.config = model.config or self.config
            runner = model.runner
            limits = self._limits = ClassLimits.of(self.config, runner.num_blocks)
            self._state = SchedulerState(
                limits, BlockPool(runner.num_blocks, runner.block_size, caching=self.config.prefix_cache)
            )
        except EngineError as error:
            forget_frames(error)
            self._refuse_to_start(error)
        except BaseException as error:
            forget_frames(error)
            failure = EngineDied(f"the model could not be loaded: {told(error)}")
            failure.__cause__ = error
            self._refuse_to_start(failure)
        else:
            self._model = model
            self._runner = StepQueue(runner)
            self.ready.set_result(model)
            self.telemetry.engine_started(model)

    def _refuse_to_start(self, error: EngineError) -> None:
        self.ended = True
        self.ready.set_exception(error)
        self.telemetry.engine_ended(error)

    def _loop(self, state: SchedulerState) -> None:
        while True:
            self._obey(wait=not (state.has_work or self._flight or self.stopping))
            if self.stopping and not (self._draining and state.has_work):
                self._deliver_late(state)
                return
            if state.has_work or self._flight:
                self._step(state)

    def _obey(self, *, wait: bool) -> None:
        """Carry out the commands that came; with ``wait``, sleep until one comes."""
        try:
            while True:
                self._commands.get(block=wait)()
                wait = False
        except queue.Empty:
            pass

    def _step(self, state: SchedulerState) -> None:
        """Begin a step, unless one is under way, and see it to its end; the next may be under way by then."""
        flight = self._flight or self._launch(state)
        if flight is None:
            self._deliver_late(state)
            return
        self._flight = self._launch_ahead(state, flight.plan) if self._runner.overlaps else None
        self._deliver_late(state)
        outputs = self._runner.collect(flight.step)
        self._short_of_memory = False
        now = time.monotonic()
        self._cost.observe(flight.plan.load, now - flight.began)
        self._record(state, flight, now)
        if self._flight is not None:
            self._flight.began = now
        self._obey(wait=False)  # who gave up during the step gets none of it
        idle = self._runner.overlaps and self._flight is None  # the device, until the next step is planned
        with waking_together():
            for seq, output in commit_step(state, flight.plan, outputs):
                if idle and can_be_late(seq, output.token_id):
                    self._late.append((seq, output, now))
                else:
                    self._deliver(state, seq, output, now)

    def _launch(self, state: SchedulerState) -> _Flight | None:
        """Plan a step and begin it. None where it was given up."""
        cost = self._cost.cost
        plan = self._schedule(state, self._budget(state, cost), cost)
        if not plan.rows:
            raise RuntimeError(f"there is work and nothing runs: {dict(plan.held)}")
        rows = apply_plan(state, plan)
        for request_id in plan.displaced:
            self.telemetry.displaced(self._live[request_id])
        abandon = self._abandonment.watch(state, plan) if self.config.scheduler == "classes" else None
        began = time.monotonic()
        for row in rows:
            generation = self._live[row.request_id]
            if generation.begin(began):
                self.telemetry.started(generation, began)
        try:
            return _Flight(plan, self._runner.submit(rows, abandon), began, _interactive(state, plan))
        except StepOutOfMemory as error:
            self._give_up_blocks(state, error)
        except StepAbandoned:  # nothing of it counts, and its rows come again
            self._abandonment.abandoned()
            self._short_of_memory = False
            self.telemetry.count("abandoned")
        return None

    def _budget(self, state: SchedulerState, cost: StepCost, under_way: int = 0) -> StepBudget:
        """Of a step before which ``under_way`` more tokens of each request are drawn."""
        gap = self.config.tpot_target_ms / 1000
        dues = (self._live[request_id].due(gap) for request_id in state.running[TrafficClass.INTERACTIVE])
        return StepBudget.of(self.config, cost, min(dues, default=math.inf) + under_way * gap - time.monotonic())

    def _launch_ahead(self, state: SchedulerState, plan: StepPlan) -> _Flight | None:
        """Begin the step after that of ``plan``, which is under way, where nothing has to be known for it."""
        if self._unseen:  # somebody interactive, who is to wait for one step at most
            return None
        cost = self._cost.cost
        ahead = plan_ahead(state, plan, self._budget(state, cost, under_way=1), cost)
        if ahead is None:
            return None
        try:
            step = self._runner.submit(apply_plan(state, ahead))
            return _Flight(ahead, step, time.monotonic(), _interactive(state, ahead))
        except StepOutOfMemory:  # the step that is planned instead meets that as well
            return None

    def _deliver_late(self, state: SchedulerState) -> None:
        late, self._late = self._late, []
        with waking_together():
            for seq, output, drawn in late:
                self._deliver(state, seq, output, drawn)

    def _give_up_blocks(self, state: SchedulerState, error: StepOutOfMemory) -> None:
        """Make the KV cache smaller, for a step that has found too little memory and is tried again after that."""
        self._deliver_late(state)
        if self._short_of_memory or error.blocks >= state.pool.num_blocks:
            raise error
        self._short_of_memory = True
        before = state.pool.given_up
        ran = set(chain(*state.running.values()))
        unfit = state.shrink(error.blocks)
        self._limits = state.limits
        error.give_up(state.pool.given_up - before)
        for seq in unfit:
            self._fail(state, seq, _unfit(state))
        for request_id in ran.intersection(chain(*state.waiting.values())):
            self.telemetry.displaced(self._live[request_id])
        self.telemetry.shrank(error.blocks, state.pool.num_blocks, str(error))

    def _deliver(self, state: SchedulerState, seq: ScheduledSequence, output: RowOutput, now: float) -> None:
        request_id = seq.request_id
        generation = self._live.get(request_id)
        if generation is None:  # another completion of its prompt has failed just now
            return
        self._follow(state, request_id)
        if request_id not in self._live:  # one that was to follow does not fit any more
            return
        assert output.token_id is not None
        try:
            ended = generation.accept(output.token_id, now, output.score)
        except Exception as error:  # one request's text is no reason to end the others
            if not isinstance(error, EngineError):
                error = EngineError(f"the output could not be turned into text: {told(error)}")
            self._fail(state, seq, error)
            return
        self.telemetry.drew(generation)
        if ended:
            self.telemetry.finished(generation)
            state.growth.observe(seq)
            state.remove(request_id)
            del self._live[request_id]

    def _fail(self, state: SchedulerState, seq: ScheduledSequence, error: EngineError) -> None:
        """End a request by ``error``, and with it the other completions of its prompt."""
        generation = self._live.pop(seq.request_id, None)
        if generation is None:  # another completion of its prompt has failed just now
            return
        generation.buffer.fail(error)
        self.telemetry.failed(generation, error)
        for relative in seq.kin:  # whose reader has the error already
            if relative is not seq:
                self._cancel(relative.request_id)
        self._follow(state, seq.request_id)
        state.remove(seq.request_id)

    def _record(self, state: SchedulerState, flight: _Flight, now: float) -> None:
        plan, pool = flight.plan, state.pool
        self.telemetry.stepped(
            StepRecord(
                at=flight.began,
                seconds=now - flight.began,
                predicted=plan.seconds,
                interactive=flight.interactive,
                bulk=len(plan.rows) - flight.interactive,
                prefill_tokens=plan.load.prefill_tokens,
                decode_rows=plan.load.decode_rows,
                slots=self.config.max_num_seqs,
                blocks=pool.num_blocks,
                free_blocks=pool.num_free,
                cached_interactive=pool.num_cached(TrafficClass.INTERACTIVE),
                cached_bulk=pool.num_cached(TrafficClass.BULK),
                held_interactive=pool.num_held(TrafficClass.INTERACTIVE),
                held_bulk=pool.num_held(TrafficClass.BULK),
            )
        )

    def _add(self, generations: Sequence[Generation]) -> None:
        first = generations[0].seq
        with self._lock:
            self._unseen -= first.traffic is TrafficClass.INTERACTIVE
        if self._state is None or self.ended or (self.stopping and not self._draining):
            with self._lock:
                self._inbox[first.traffic] -= len(generations)
            generations[0].buffer.fail(self._why_ended())
            return
        for generation in generations:
            generation.seq.arrival = self._arrivals
            self._arrivals += 1
            self._live[generation.seq.request_id] = generation
            self.telemetry.queued(generation)
        self._followers[first.request_id] = [generation.seq for generation in generations[1:]]
        self._enqueue(self._state, first)

    def _enqueue(self, state: SchedulerState, seq: ScheduledSequence) -> None:
        with self._lock:
            self._inbox[seq.traffic] -= 1
        if state.fit(seq):
            state.add(seq)
        else:  # since it was taken in, the KV cache has become smaller
            self._fail(state, seq, _unfit(state))

    def _follow(self, state: SchedulerState, request_id: int) -> None:
        """The request has computed its prompt, or never will: the other completions of it wait for their turn."""
        for seq in self._followers.pop(request_id, ()):
            if seq.request_id in self._live:
                self._enqueue(state, seq)

    def _cancel(self, request_id: int) -> None:
        generation = self._live.pop(request_id, None)
        if generation is None or self._state is None:
            return
        self._follow(self._state, request_id)
        if self._state.remove(request_id) is None:  # it followed another that has not computed the prompt yet
            with self._lock:
                self._inbox[generation.seq.traffic] -= 1
        self.telemetry.cancelled(generation)

    def _end(self, why: Callable[[], EngineError]) -> None:
        with self._lock:
            self.ended = True
            self._why_ended = why
        self._state = None  # its books may be wrong, and nobody may stumble over them and leave the others waiting
        self._obey(wait=False)  # what was submitted before this instant fails, like the rest
        unfinished = [(generation, why()) for generation in self._live.values()]
        self._live.clear()
        for generation, error in unfinished:
            generation.buffer.fail(error)
        if self._model is None:
            return
        try:
            self._model.runner.close()
        except Exception:  # a device that has failed: the others are told nevertheless
            _log.exception("the engine's memory could not be given back")
        self._model = self._flight = None
        self._late.clear()
        for generation, error in unfinished:
            self.telemetry.failed(generation, error)
        self.telemetry.engine_ended(None if why is closed else why())


def _interactive(state: SchedulerState, plan: StepPlan) -> int:
    return sum(row.request_id in state.running[TrafficClass.INTERACTIVE] for row in plan.rows)


def _unfit(state: SchedulerState) -> PromptTooLong:
    room = f"{state.pool.num_blocks} blocks of {state.pool.block_size} tokens"
    return PromptTooLong(f"memory ran out, and the {room} that are left do not hold it")


def _nothing() -> None:
    pass


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread inside torch must not outlive the interpreter."""
    workers = [worker for worker in _workers if not worker.ended]
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.join(_EXIT_SECONDS)
