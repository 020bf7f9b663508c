"""Threads that each compute some rows of a step by themselves."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from orchestra.localengine.step import StepAbandoned

__all__ = ["Lanes"]

_T = TypeVar("_T")
_LEAST_TOKENS = 64  # in a lane: the weights that each reads anew cost more than is won with fewer
_LEAST_SHARE = 0.8  # of the fullest lane in the emptiest: all wait for the fullest


class Lanes:
    """``count`` threads with one thread of torch each, for steps of many tokens.

    The threads that torch lets work on one operation wait for the slowest of them, some thousand times a step.
    Lanes wait for each other once. It makes no difference while every core is as quick as the others; where
    something else takes a core now and then, a step of lanes took half the time and up to nine tenths.

    The threads start when they are first used, and end with `close` or when nothing refers to the lanes.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._close: Callable[[], Any] = _nothing

    def divide(self, tokens: Sequence[int]) -> list[list[int]]:
        """Rows of so many tokens divided among the lanes: the places of each lane's rows, in ascending order.

        One share of all rows where dividing them does not pay.
        """
        shares: list[list[int]] = [[] for _ in range(self.count)]
        loads = [0] * self.count
        for place in sorted(range(len(tokens)), key=lambda place: -tokens[place]):
            lane = loads.index(min(loads))
            shares[lane].append(place)
            loads[lane] += tokens[place]
        if min(loads) < max(_LEAST_TOKENS, _LEAST_SHARE * max(loads)):
            return [list(range(len(tokens)))]
        return [sorted(share) for share in shares]

    def run(self, function: Callable[[list[int]], _T], shares: Sequence[list[int]]) -> list[_T]:
        """``function`` of every share, each in a lane of its own; there may be no more than ``count``.

        Returns when all have ended. Raises what ``function`` raised, of the first share for which it did.
        """
        if self._close is _nothing:
            self._start()
        futures: list[Future[_T]] = [Future() for _ in shares]
        for future, share in zip(futures, shares, strict=True):
            self._tasks.put(_task(future, function, share))
        wait(futures)
        results = []
        try:
            for future in futures:
                results.append(future.result())
            return results
        finally:
            # an error refers to this frame; if that led back to it, what a step holds would stay for a while
            del futures, future

    def close(self) -> None:
        """Let the threads end. Closing twice is harmless; `run` starts new ones."""
        self._close()
        self._close = _nothing

    def _start(self) -> None:
        threads = torch.get_num_threads()
        started = threading.Barrier(self.count + 1)
        try:
            for number in range(self.count):
                name = f"orchestra-lane-{number}"
                threading.Thread(target=_serve, args=(self._tasks, started), name=name, daemon=True).start()
        except BaseException:
            started.abort()
            raise
        started.wait()
        torch.set_num_threads(threads)  # part of what the lanes have set of their own holds for the process
        self._close = closing = weakref.finalize(self, _end, self._tasks, self.count)
        closing.atexit = False  # the interpreter's end stops daemons by itself, and a step may be under way


def _serve(tasks: SimpleQueue[Callable[[], None] | None], started: threading.Barrier) -> None:
    torch.get_num_threads()  # the first question in a thread sets its number to that of the process
    torch.set_num_threads(1)
    try:
        started.wait()
    except threading.BrokenBarrierError:  # another could not be started
        return
    while (task := tasks.get()) is not None:
        task()
        del task  # and with it what it refers to, while there is nothing to do


def _task(future: Future[_T], function: Callable[[list[int]], _T], share: list[int]) -> Callable[[], None]:
    def task() -> None:
        try:
            future.set_result(function(share))
        except StepAbandoned as error:  # where it was given up is of no interest, and holds what was computed
            future.set_exception(error.with_traceback(None))
        except BaseException as error:
            future.set_exception(error)

    return task


def _end(tasks: SimpleQueue[Callable[[], None] | None], count: int) -> None:
    for _ in range(count):
        tasks.put(None)


def _nothing() -> None:
    pass
