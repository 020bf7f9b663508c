"""Shown and asked over real sockets: by whom, how long, and what becomes of those who misbehave."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.observe import beacon as beacons
from orchestra.observe import status_server
from orchestra.observe.beacon import Beacon
from orchestra.observe.status_client import look_around
from orchestra.observe.status_folder import address


class Owner:
    def __init__(self, **told):
        self.told = told

    def snapshot(self):
        return self.told


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", str(tmp_path))
    # a busy machine may take its time
    monkeypatch.setitem(look_around.__kwdefaults__, "timeout", 50.0)
    monkeypatch.setattr(status_server, "PATIENCE", 50.0)
    return tmp_path / "orchestra"


@pytest.fixture
def show():
    """Show an owner, and show it no longer in the end."""
    with contextlib.ExitStack() as stack:

        def shown(owner, **more):
            made = Beacon(owner, **more)
            stack.callback(made.close)
            return made

        yield shown


def snapshots():
    return [one.told["snapshot"] if one.told else one.fault for one in look_around()]


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    """A socket where a program with the number 77 would be, which answers nothing by itself."""
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as odd:
        with address(folder / "77-1.sock") as where:
            odd.bind(where)
        odd.listen()
        yield odd


def connect(folder: Path) -> socket.socket:
    (path,) = folder.iterdir()
    asking = socket.socket(socket.AF_UNIX)
    with address(path) as where:
        asking.connect(where)
    asking.settimeout(30)
    return asking


def ask(folder: Path, request: bytes) -> tuple[bytes, object]:
    """Return the status line, and what the body says."""
    with connect(folder) as asking:
        asking.sendall(request)
        answer = b"".join(iter(lambda: asking.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], json.loads(body)


GET = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"


# What is shown


def test_it_tells_who_it_is_and_what_it_does(show):
    owner = Owner(pools=[])
    show(owner, config="/etc/orchestra.toml")
    (seen,) = look_around()
    assert seen.told["snapshot"] == {"pools": []}
    assert (seen.told["pid"], seen.told["config"], seen.told["format"]) == (os.getpid(), "/etc/orchestra.toml", 1)
    assert 0 <= seen.told["uptime"] < 60
    assert ("pytest" if "PYTEST_XDIST_WORKER" not in os.environ else "python") in seen.told["program"]


def test_the_program_is_named_without_its_arguments(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    for started, name in (("/srv/app/serve.py", "serve.py"), ("-c", "python -c"), ("", "python")):
        monkeypatch.setattr(sys, "argv", [started, "--api-key", "sk-secret"])
        assert beacons.program_name() == name
    code = "from orchestra.observe.beacon import program_name; print(program_name())"
    done = subprocess.run([sys.executable, "-c", code, "sk-secret"], capture_output=True, text=True)
    assert done.stdout == "python -c\n"


def test_several_instances_are_several(show):
    first, second = Owner(n=1), Owner(n=2)
    gone = show(first)
    show(second)
    assert sorted(one["n"] for one in snapshots()) == [1, 2]
    assert len({one.instance for one in look_around()}) == 2
    gone.close()
    gone.close()
    assert snapshots() == [{"n": 2}]


def test_only_the_asked_process_is_looked_at(show):
    owner = Owner()
    show(owner)
    assert len(look_around(pid=os.getpid())) == 1
    assert look_around(pid=os.getpid() + 1) == []


def test_it_is_for_this_user_alone(show, folder):
    owner = Owner()
    show(owner)
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_who_is_forgotten_is_shown_no_longer(show, folder):
    owner = Owner()
    Beacon(owner)
    del owner
    gc.collect()
    assert list(folder.iterdir()) == []


THREADS = """
import sys, time
from orchestra.observe.beacon import Beacon
from orchestra.observe.status_client import look_around

class Owner:
    def snapshot(self):
        return {"it": "is me"}

def threads():
    return len(sys._current_frames())

assert threads() == 1
owner = Owner()
made = Beacon(owner)
assert [one.told["snapshot"] for one in look_around()] == [{"it": "is me"}]
assert threads() == 2
made.close()
until = time.monotonic() + 30
while threads() > 1 and time.monotonic() < until:
    time.sleep(0.005)
assert threads() == 1
"""


def test_when_nothing_is_shown_there_is_no_thread():
    subprocess.run([sys.executable, "-c", THREADS], check=True)


def test_it_opens_and_closes_again_and_again(show):
    for number in range(50):
        owner = Owner(n=number)
        made = Beacon(owner)
        assert snapshots() == [{"n": number}]
        made.close()


def test_many_threads_open_and_close_at_once(folder):
    def work():
        for _ in range(20):
            owner = Owner()
            Beacon(owner).close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(folder.iterdir()) == []


def test_what_json_cannot_tell_is_told_all_the_same(show):
    owner = Owner(wait=math.inf, none=math.nan, pair=(1, 2), path=Path("x"), by={3: "three"})
    show(owner)
    assert snapshots() == [{"wait": None, "none": None, "pair": [1, 2], "path": "x", "by": {"3": "three"}}]


# It never harms the application


def test_where_there_can_be_no_socket_it_is_not_seen(monkeypatch, tmp_path, caplog):
    caplog.set_level("DEBUG", logger="orchestra")
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", str(file))
    Beacon(Owner()).close()
    monkeypatch.delattr(socket, "AF_UNIX")
    Beacon(Owner()).close()
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert look_around() == []


def test_where_there_can_be_no_thread_it_is_not_seen(monkeypatch, folder):
    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(beacons, "_server", status_server.StatusServer())
    monkeypatch.setattr(status_server._thread, "start_new_thread", no_thread)
    Beacon(Owner())
    assert list(folder.iterdir()) == []


def test_a_snapshot_that_fails_is_a_fault_and_the_next_one_works(show):
    class Broken:
        def snapshot(self):
            raise ValueError("sk-secret")

    broken, sound = Broken(), Owner()
    show(broken)
    show(sound)
    first, second = look_around()
    assert first.fault == "it answered 500: there is no snapshot: ValueError"
    assert second.told["snapshot"] == {}


# Who asks, and how


def test_it_is_plain_http(show, folder):
    owner = Owner(n=1)
    show(owner)
    status, told = ask(folder, GET)
    assert status == b"HTTP/1.1 200 OK"
    assert told["snapshot"] == {"n": 1}


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"POST /status HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 Not Found"),
        (b"\x00\xff\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
    ],
)
def test_nothing_else_is_answered(show, folder, request_, status):
    owner = Owner()
    show(owner)
    assert ask(folder, request_)[0] == status


def test_whoever_says_nothing_or_too_much_is_let_go(show, folder, monkeypatch):
    owner = Owner()
    show(owner)
    with connect(folder) as endless:
        endless.sendall(b"x" * (status_server.LONGEST_REQUEST + 1))
        with contextlib.suppress(ConnectionResetError):
            assert endless.recv(1) == b""
    with monkeypatch.context() as hasty:
        hasty.setattr(status_server, "PATIENCE", 0.05)
        with connect(folder) as silent:
            assert silent.recv(1) == b""
    assert snapshots() == [{}]


def test_silent_ones_keep_out_others_for_a_moment_only(show, folder, monkeypatch):
    owner = Owner()
    show(owner)
    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as hasty:
            hasty.setattr(status_server, "PATIENCE", 0.05)
            crowd = []
            for _ in range(status_server.MOST_CONNECTIONS + 4):
                crowd.append(stack.enter_context(connect(folder)))
            for one in crowd:
                assert one.recv(1) == b""
        assert snapshots() == [{}]


def test_a_slow_reader_holds_up_nobody(show, folder):
    owner = Owner(much="x" * (4 << 20))
    show(owner)
    with connect(folder) as slow:
        slow.sendall(GET)
        assert slow.recv(10) == b"HTTP/1.1 2"
        assert len(snapshots()[0]["much"]) == 4 << 20


def test_an_answer_without_end_is_not_given(show, folder, monkeypatch):
    monkeypatch.setattr(status_server, "LONGEST_ANSWER", 1000)
    owner = Owner(much="x" * 1000)
    show(owner)
    assert ask(folder, GET) == (b"HTTP/1.1 500 Internal Server Error", {"error": "there is too much to tell"})


@pytest.mark.parametrize(("user", "may"), [(os.geteuid(), True), (0, True), (os.geteuid() + 4321, False)])
def test_other_users_are_not_answered(user, may):
    class Asking:
        def getsockopt(self, level, option, size):
            return struct.pack("iII", 1, user, 1)

    assert status_server._may_ask(Asking()) is may


def test_a_process_that_does_not_answer_is_named(folder):
    with listening(folder):
        (seen,) = look_around(timeout=0.03)
    assert (seen.pid, seen.told) == (77, None)
    assert seen.fault.startswith("no answer within 0.03 s")


def test_one_that_never_comes_to_an_end_is_not_waited_for(folder):
    with listening(folder) as odd:

        def drip():
            accepted, _ = odd.accept()
            with accepted, contextlib.suppress(OSError):
                accepted.recv(4096)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n")
                for _ in range(400):
                    accepted.sendall(b" ")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip)
        thread.start()
        (seen,) = look_around(timeout=0.1)
        thread.join()
    assert seen.fault.startswith("no answer within 0.1 s")


def test_a_newer_version_is_named(show, monkeypatch):
    monkeypatch.setattr(beacons, "FORMAT", beacons.FORMAT + 1)
    owner = Owner()
    show(owner)
    (seen,) = look_around()
    assert seen.told is None
    assert "a newer version of orchestra runs there" in seen.fault


def test_one_that_talks_nonsense_is_named(folder):
    with listening(folder) as odd:

        def babble():
            accepted, _ = odd.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull")

        thread = threading.Thread(target=babble)
        thread.start()
        (seen,) = look_around()
        thread.join()
    assert seen.fault == "it answered 200: with nothing we know"


def test_a_folder_of_somebody_elses_is_not_looked_into(show, folder, monkeypatch):
    owner = Owner()
    show(owner)
    folder.chmod(0o755)
    assert look_around() == []


# Forks, and processes that die


def test_a_fork_finds_no_snapshot_under_way(show):
    owner = Owner()
    show(owner)
    beacons._server.hold()
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(look_around()))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    beacons._server.let_go()
    thread.join()
    assert len(seen) == 1


FORK = """
import os, signal, socket, sys, time
from orchestra.observe.beacon import Beacon
from orchestra.observe.status_client import look_around
class Owner:
    def snapshot(self): return {"of": os.getpid()}
owner = Owner()
Beacon(owner)
parent = os.getpid()
assert [one.pid for one in look_around(timeout=50)] == [parent]
if os.fork():
    time.sleep(60)
assert [one.told["snapshot"]["of"] for one in look_around()] == [parent]
Beacon(owner)
seen = look_around()
assert sorted(one.pid for one in seen) == sorted([parent, os.getpid()]), seen
assert all(one.told["snapshot"]["of"] == one.pid for one in seen), seen
os.kill(parent, signal.SIGKILL)
until = time.monotonic() + 30
while [one.pid for one in look_around(timeout=50)] != [os.getpid()] and time.monotonic() < until:
    time.sleep(0.01)
assert [one.pid for one in look_around(timeout=50)] == [os.getpid()], "the child answers for itself alone"
print("fine")
"""


def test_a_forked_child_answers_for_itself_alone(folder):
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=50)
    assert done.stdout == "fine\n", done.stderr
    assert done.returncode == -9


def test_what_a_killed_process_left_is_removed_by_the_next_that_opens(show, folder):
    code = "from orchestra.observe.beacon import Beacon\nimport os\nclass O: snapshot = dict\no = O()\nBeacon(o)\n"
    done = subprocess.run([sys.executable, "-c", code + "os.kill(os.getpid(), 9)"])
    assert done.returncode == -9
    (left,) = folder.iterdir()
    os.utime(left, (time.time() - 60, time.time() - 60))
    owner = Owner()
    show(owner)
    assert left not in folder.iterdir()
    assert len(look_around()) == 1


def test_a_process_that_ends_leaves_nothing(folder):
    code = "from orchestra.observe.beacon import Beacon\nclass O: snapshot = dict\no = O()\nBeacon(o)\n"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(folder.iterdir()) == []


def test_a_name_that_somebody_alive_has_is_passed_over(show, folder, monkeypatch):
    monkeypatch.setattr(beacons, "_numbers", iter([1, 2]))
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as other:
        with address(folder / f"{os.getpid()}-1.sock") as where:
            other.bind(where)
        other.listen()
        owner = Owner()
        show(owner)
        assert sorted(path.name for path in folder.iterdir()) == [
            f"{os.getpid()}-1.sock",
            f"{os.getpid()}-2.sock",
        ]
