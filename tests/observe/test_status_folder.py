"""Which folders count, and how a socket finds room in them."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from orchestra.observe import status_folder
from orchestra.observe.status_folder import (
    address,
    check_folder,
    folders,
    make_folder,
    read_name,
    remove_dead,
    socket_name,
)


def listen(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    with address(path) as where:
        made.bind(where)
    made.listen()
    return made


def age(path: Path) -> None:
    os.utime(path, (time.time() - 60, time.time() - 60))


def test_the_named_folder_is_the_only_one(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("ORCHESTRA_RUNTIME_DIR", "/somewhere")
    assert folders() == [Path("/somewhere/orchestra")]


def test_without_one_the_users_own_places_are_tried_in_order(monkeypatch, tmp_path):
    monkeypatch.delenv("ORCHESTRA_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(status_folder.tempfile, "gettempdir", lambda: "/var/tmp")
    user = os.geteuid()
    assert folders() == [
        tmp_path / "orchestra",
        Path(f"/var/tmp/orchestra-{user}"),
        Path(f"/tmp/orchestra-{user}"),
    ]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert folders()[0] == Path(f"/var/tmp/orchestra-{user}")


def test_a_platform_without_unix_sockets_has_none(monkeypatch):
    monkeypatch.delattr(socket, "AF_UNIX")
    assert folders() == []


def test_a_made_folder_is_the_users_alone(tmp_path):
    folder = tmp_path / "runtime" / "orchestra"
    make_folder(folder)
    make_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_an_open_folder_and_anothers_are_refused(tmp_path, monkeypatch):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(PermissionError, match="a link"):
        make_folder(link)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PermissionError, match="no folder"):
        make_folder(file)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        make_folder(open_to_all)
    with pytest.raises(FileNotFoundError):
        check_folder(tmp_path / "missing")
    monkeypatch.setattr(os, "geteuid", lambda: real.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        make_folder(real)


def test_names_go_round():
    assert read_name(socket_name(4242, 7)) == (4242, 7)
    for name in ("x.sock", "1-2.sock.new", "1-2", "-1-2.sock", "1-2.sock/x", f"{10**12}-1.sock"):
        assert read_name(name) is None


def test_a_path_of_any_length_has_an_address(tmp_path):
    folder = tmp_path / ("f" * 120)
    folder.mkdir()
    path = folder / "1-1.sock"
    with listen(path), socket.socket(socket.AF_UNIX) as asking, address(path) as where:
        asking.connect(where)
    assert path.is_socket()


def test_where_there_is_no_way_round_a_long_path_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    with pytest.raises(OSError, match="too long"), address(tmp_path / ("f" * 120)):
        pass


def test_only_the_dead_are_removed(tmp_path):
    path = tmp_path / "1-1.sock"
    made = listen(path)
    age(path)
    assert not remove_dead(path)
    made.close()
    assert remove_dead(path)
    assert not path.exists()
    assert remove_dead(path), "it is gone already"


def test_one_that_does_not_listen_yet_is_left_alone(tmp_path):
    path = tmp_path / "1-1.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        os.utime(path, (time.time() + 60, time.time() + 60))  # just born, however slow the machine is
        assert not remove_dead(path)
        age(path)
        assert remove_dead(path)


def test_what_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "1-1.sock"
    path.write_text("mine")
    age(path)
    assert not remove_dead(path)
    assert path.read_text() == "mine"
