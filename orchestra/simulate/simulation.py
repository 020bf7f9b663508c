"""Runs traffic through the real budget, routing and jobs, on a loop whose time jumps.

Everything between an application's call and the network is the product's own: admission, routes, retries,
breakers, hedging, durable jobs with their ledger, and the planning of what rides in batches. What is simulated is
outside: the network (`SimulatedWire`), engines (`SimulatedEngine`), and time (`VirtualLoop`).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from orchestra.batches import BatchDesk
from orchestra.budget import Budget
from orchestra.call import Call, Outcome
from orchestra.config import LOCAL, BudgetConfig, Config
from orchestra.dispatch import Dispatcher
from orchestra.errors import InputError, JobError, OrchestraError
from orchestra.jobs import JobManager
from orchestra.simulate.engine import SimulatedEngine
from orchestra.simulate.findings import Findings
from orchestra.simulate.outside import Outside
from orchestra.simulate.summing_up import JobEnd, sum_up
from orchestra.simulate.tally import Tally
from orchestra.simulate.traffic import Ask, Burst, Traffic
from orchestra.simulate.virtual_loop import LONGEST, VirtualLoop
from orchestra.simulate.wire import SimulatedWire
from orchestra.simulate.wording import Wire, ask, wire_of

__all__ = ["Simulation"]

_EPOCH = 1_767_225_600.0  # a midnight, UTC
_TOLD_EVERY = 600.0
_DRAIN = 86_400.0
_LONGEST = LONGEST - 10 * 86_400.0  # which leaves room for what ends after it

_Send = Callable[[Call], Awaitable[Outcome]]


class Simulation:
    """``traffic`` meeting the settings ``config`` and the world ``outside``. `run` it once.

    After the last call and the last job have come, it goes on until all is answered, for ``drain`` seconds at
    most. ``progress`` is told from time to time which second it is. Everything drawn by lot follows from ``seed``.

    No key is needed, nothing is sent, and the ledger is in a folder that is gone afterwards. The account is taken
    to be this program's alone, whoever shares its budget in reality. Meanwhile nothing of ours is logged.

    Raises InputError for what cannot be simulated, UnknownModelError where no route answers to a model.
    """

    def __init__(
        self,
        config: Config,
        traffic: Traffic,
        outside: Outside,
        *,
        seed: int = 0,
        drain: float = _DRAIN,
        progress: Callable[[float], object] = lambda second: None,
    ) -> None:
        outside.check(config.providers)
        if traffic.seconds > _LONGEST:
            days, most = traffic.seconds / 86_400, _LONGEST / 86_400
            raise InputError(f"{days:.0f} days are more than can be simulated: at most {most:.0f}")
        self._config = _simulated(config)
        self._traffic = traffic
        self._outside = outside
        self._seed = seed
        self._drain = min(drain, _LONGEST - traffic.seconds)
        self._progress = progress
        self._began = 0.0
        self._is_interrupted = False
        self._wires: dict[str, Wire] = {}
        self._jobs: dict[str, JobEnd] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._crash: BaseException | None = None

    def run(self) -> Findings:
        """Simulate, and return what came of it. Interrupted (Ctrl-C), return what had been found by then."""
        began = time.process_time()
        with ExitStack() as stack:
            stack.enter_context(_luck(self._seed))
            stack.enter_context(_silence())
            stack.enter_context(_rare_collection())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchestra-simulate-")))
            runner = stack.enter_context(
                asyncio.Runner(loop_factory=lambda: VirtualLoop(self._seed, epoch=_EPOCH))
            )
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            return runner.run(self._run(loop, folder, lambda: time.process_time() - began))

    async def _run(self, loop: VirtualLoop, folder: Path, cpu: Callable[[], float]) -> Findings:
        config = self._config
        self._began = loop.time()
        budget = Budget(config.traffic, clock=loop.time, call_at=loop.ring_at)
        wire = SimulatedWire(config, self._outside, loop, lambda: self._second(loop))
        engines = self._engines()
        dispatcher = Dispatcher(config, budget=budget, wire=wire, local=engines, clock=loop.time, wall=loop.wall)
        desk = BatchDesk(budget=budget, wire=wire, routing=dispatcher.targets, wall=loop.wall)
        tally = Tally(self._began - self._traffic.starts_at % 3600.0)
        dispatcher.events.subscribe(tally)

        async def send(call: Call) -> Outcome:
            tally.came(call.id, call.traffic, loop.time())
            return await dispatcher.send(call)

        manager = JobManager(
            folder / "jobs.db",
            send,
            desk=desk,
            price=dispatcher.price,
            clock=loop.clock,
            events=dispatcher.events,
        )
        for burst in self._traffic.jobs:
            self._check_job(burst, dispatcher)
        try:
            await self._feed(loop, dispatcher, manager, send)
            ended = loop.time()
            unfinished = {traffic: tally.unfinished(traffic) for traffic in tally.classes}
        finally:
            await self._end(manager)
        if self._crash is not None:
            raise self._crash
        return sum_up(
            config,
            self._outside,
            self._traffic,
            tally,
            unfinished=unfinished,
            jobs=self._jobs,
            busy={name: engine.busy_seconds for name, engine in engines.items()},
            seconds=ended - self._began,
            is_interrupted=self._is_interrupted,
            cpu_seconds=cpu(),
        )

    def _second(self, loop: VirtualLoop) -> float:
        return self._traffic.starts_at + loop.time() - self._began

    def _engines(self) -> dict[str, SimulatedEngine]:
        speeds = self._outside.engines
        for name in speeds:
            if name not in self._config.local:
                known = ", ".join(sorted(self._config.local)) or "none"
                raise InputError(f"the settings have no engine [local.{name}]; they have: {known}")
        return {name: SimulatedEngine(name, speeds[name]) for name in self._config.local if name in speeds}

    def _check_job(self, burst: Burst, dispatcher: Dispatcher) -> None:
        """Refuse a job before it comes whose lines nobody could answer."""
        self._check(burst.model, dispatcher)
        if self._wire_of(burst.model) == "gemini":
            raise InputError(
                f"the job {burst.name} asks {burst.model!r}, whose routes speak Gemini's wire: lines of a job are "
                "in OpenAI's or Anthropic's"
            )

    def _check(self, model: str, dispatcher: Dispatcher) -> None:
        entry = self._config.models.get(model)
        for route in entry.routes if entry else (model,):
            head, _, name = route.partition("/")
            if head == LOCAL and name in self._config.local and name not in self._outside.engines:
                raise InputError(
                    f"{model!r} may be answered by the engine {name!r}: say how fast it is, by a device as "
                    f"--engine {name}=h100, or in figures as --engine {name}=slots:8,step:20ms"
                )
        dispatcher.check(model)

    async def _feed(self, loop: VirtualLoop, dispatcher: Dispatcher, manager: JobManager, send: _Send) -> None:
        """Let everything come, and wait for the end of it, or until somebody interrupts that."""
        ticking = self._start(self._tick(loop))
        try:
            await self._let_come(loop, dispatcher, manager, send)
            if waiting := self._tasks - {ticking}:
                await asyncio.wait(waiting, timeout=self._drain)
        except asyncio.CancelledError:
            self._is_interrupted = True

    async def _let_come(self, loop: VirtualLoop, dispatcher: Dispatcher, manager: JobManager, send: _Send) -> None:
        """Let everything come at its instant."""
        for burst in self._traffic.jobs:
            self._start(self._burst(burst, loop, manager))
        known: set[str] = set()
        for one in self._traffic.calls:
            if one.model not in known:
                self._check(one.model, dispatcher)
                known.add(one.model)
            wait = self._began + one.at - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            self._start(self._call(one, send))
            if self._crash is not None:
                return
        last = max((burst.at for burst in self._traffic.jobs), default=0.0)
        if (wait := self._began + last - loop.time()) > 0:
            await asyncio.sleep(wait)

    async def _call(self, one: Ask, send: _Send) -> None:
        path, payload = ask(self._wire_of(one.model), one.model, one.size)
        call = Call.originate(path, payload, traffic=one.traffic, job=one.job, queue_bound=one.time_left)
        try:
            outcome = await send(call)
            await outcome.read()
        except OrchestraError:
            pass  # its events have told

    async def _burst(self, burst: Burst, loop: VirtualLoop, manager: JobManager) -> None:
        await asyncio.sleep(max(0.0, self._began + burst.at - loop.time()))
        wire = self._wire_of(burst.model)

        def lines() -> Iterator[Mapping[str, Any]]:
            for number, size in enumerate(burst.lines):
                path, body = ask(wire, burst.model, size)
                yield {"custom_id": str(number), "method": "POST", "url": path, "body": body}

        job = await manager.submit(lines(), job=burst.name, deadline=burst.deadline)
        seconds: float | None = None
        stopped: str | None = None
        expired, began = 0, loop.time()
        try:
            failed = (await job.wait()).failed
            seconds = loop.time() - began
            if failed:
                expired = sum([result.error_code == "expired" async for result in job.results()])
        except JobError as error:
            stopped = str(error)
        finally:
            self._jobs[burst.name] = JobEnd(job.progress(), seconds, stopped, expired)

    def _wire_of(self, model: str) -> Wire:
        wire = self._wires.get(model)
        if wire is None:
            wire = self._wires[model] = wire_of(self._config, model)
        return wire

    async def _tick(self, loop: VirtualLoop) -> None:
        while True:
            self._progress(self._second(loop))
            await asyncio.sleep(_TOLD_EVERY)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash = self._crash or error

    async def _end(self, manager: JobManager) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await manager.aclose()


def _simulated(config: Config) -> Config:
    """Return the settings without what only reality has: keys, and other processes."""
    missing = [name for name, one in config.providers.items() if not one.base_url]
    if missing:
        raise InputError(f"the provider {missing[0]!r} has no base_url")
    providers = {name: one.model_copy(update={"api_key": "simulated"}) for name, one in config.providers.items()}
    return config.model_copy(update={"providers": providers, "budget": BudgetConfig()})


@contextmanager
def _silence() -> Iterator[None]:
    """Keep warnings of what happens in the simulation from who would take them for real."""
    log = logging.getLogger("orchestra")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Let the garbage collector look seldom: what is alive is many waiting calls, and little of it is garbage.

    A tenth of the time of a day went into looking.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def _luck(seed: int) -> Iterator[None]:
    """Let what is drawn from the process's own dice follow from ``seed``: jitter, names of calls."""
    state = random.getstate()
    random.seed(f"simulation {seed}")
    try:
        yield
    finally:
        random.setstate(state)
