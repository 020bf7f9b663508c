"""What a feed hears from wherever it is told."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace

import pytest
from told_calls import Teller

from orchestra.config import Config
from orchestra.observe.events import EventBus
from orchestra.observe.feed import Feed


def client():
    return SimpleNamespace(config=Config(), events=EventBus(), subscribe_engines=lambda subscriber: lambda: None)


def call(bus, teller=None):
    teller = teller or Teller()
    for kind in ("sent", "settled"):
        bus.emit(teller(kind, attempt=1))


def test_what_is_told_in_the_midst_of_recording_is_recorded_too():
    """As the garbage collector may tell of a stream that was dropped, wherever it happens to run."""
    told, recorded, ended = client(), [], []
    dropped = [Teller()("failed", reason="dropped", duration=1.0)]

    def record(measurement):
        assert not busy.locked(), "an exporter that is at work is not entered again"
        with busy:
            while dropped:
                told.events.emit(dropped.pop())
            recorded.append(measurement.name)

    busy = threading.Lock()
    feed = Feed(told, record, ended=lambda whole: ended.append(whole.events[-1].kind))
    call(told.events)
    assert ended == ["settled", "failed"]
    assert recorded.count("gen_ai.client.operation.duration") == 2
    feed.close()
    call(told.events)
    assert len(ended) == 2


def test_a_thread_that_records_keeps_no_other_waiting():
    told, begun, go_on, ended = client(), threading.Event(), threading.Event(), []

    def record(measurement):
        begun.set()
        assert go_on.wait(20)

    Feed(told, record, ended=lambda whole: ended.append(whole.origin), origin=threading.get_ident)
    first = threading.Thread(target=call, args=(told.events,))
    first.start()
    assert begun.wait(20)
    call(told.events)
    assert ended == []
    go_on.set()
    first.join()
    assert ended == [first.ident, threading.get_ident()], "each is of the thread that told it"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_hears_though_it_was_forked_while_another_thread_recorded():
    told, begun, go_on, ended = client(), threading.Event(), threading.Event(), []
    parent = os.getpid()

    def record(measurement):
        begun.set()
        assert os.getpid() != parent or go_on.wait(20)

    feed = Feed(told, record, ended=lambda whole: ended.append(whole.events[0].call))
    teller = Teller()
    under_way = Teller()
    told.events.emit(under_way("sent", attempt=1))
    recording = threading.Thread(target=call, args=(told.events, teller))
    recording.start()
    assert begun.wait(20)
    if not (child := os.fork()):
        signal.alarm(20)
        call(told.events)
        told.events.emit(under_way("settled", attempt=1))  # which is the parent's
        os._exit(len(ended))
    go_on.set()
    recording.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    feed.close()
