from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from orchestra.kernels.launch import ARCHITECTURES, TABLE_FILE, LaunchConfig, arch_of, launch_config, trial
from orchestra.kernels.launch_table import read_table, written_table

OPERATIONS = ["activation", "attention.decode", "attention.extend", "norm", "rope_kv", "sampling"]
NUMBERS = ("head_dim", "key_bytes", "hidden", "width", "vocab")
SMALL = dict.fromkeys(NUMBERS, 1)
HUGE = dict.fromkeys(NUMBERS, 1 << 20)


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """What was found out about a device is remembered."""
    arch_of.cache_clear()
    yield
    arch_of.cache_clear()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_shape_has_a_launch_on_every_architecture(op: str, arch: str) -> None:
    for shape in (SMALL, HUGE):
        config = launch_config(op, arch, **shape)
        for number in (config.num_warps, *config.blocks.values()):
            assert number > 0
            assert number & (number - 1) == 0, "Triton wants powers of two"
        assert config.num_stages > 0


def test_the_first_row_that_holds_is_taken() -> None:
    warps = [launch_config("norm", "sm_90", hidden=hidden).num_warps for hidden in (576, 1024, 1025, 4096, 16384)]
    assert warps == [2, 2, 4, 8, 16]


def test_the_compiler_is_told_whether_to_fuse() -> None:
    """Triton's default is about to change, and with it the last bits of every result."""
    assert LaunchConfig(num_warps=8, num_stages=3).options == {
        "num_warps": 8,
        "num_stages": 3,
        "enable_fp_fusion": True,
    }


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no launch settings for 'convolution'; there are those of activation"):
        launch_config("convolution", "sm_90")
    with pytest.raises(ValueError, match="unknown architecture 'sm_70'"):
        launch_config("norm", "sm_70", hidden=64)
    with pytest.raises(KeyError, match="hidden"):
        launch_config("norm", "sm_90")


def test_the_table_is_written_as_it_is_read() -> None:
    text = TABLE_FILE.read_text(encoding="utf-8")
    assert written_table(read_table(text)) == text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"sm_70": [{"warps": 4, "stages": 1}]}', "unknown architecture 'sm_70'"),
        ('{"sm_90": [{"warps": 4, "stages": 1}]}', "no rows for 'any'"),
        ('{"any": []}', "the last row must be for all shapes"),
        ('{"any": [{"up_to": {"hidden": 64}, "warps": 4, "stages": 1}]}', "the last row must be for all shapes"),
        ('{"any": [{"warps": 4, "stages": 1, "wraps": 2}]}', "a row has no wraps"),
        ('{"any": [{"warps": 4}]}', "whole numbers above 0"),
        ('{"any": [{"blocks": {"BLOCK": "64"}, "warps": 4, "stages": 1}]}', "whole numbers above 0"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(rows: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(f'{{"norm": {rows}}}')


def test_a_trial_holds_for_its_operation_while_it_lasts() -> None:
    usual, tried = launch_config("norm", "sm_90", hidden=64), LaunchConfig(num_warps=1)
    other = launch_config("rope_kv", "sm_90", head_dim=64)
    with trial("norm", tried):
        assert launch_config("norm", "sm_90", hidden=64) is tried
        assert launch_config("rope_kv", "sm_90", head_dim=64) == other
    assert launch_config("norm", "sm_90", hidden=64) == usual


def test_a_cpu_interprets() -> None:
    assert arch_of(torch.device("cpu")) == "interpreter"


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_120"),  # 99 KB of shared memory as there
        ((8, 9), "sm_120"),
        ((9, 0), "sm_90"),
        ((10, 3), "sm_100"),
        ((12, 1), "sm_120"),
        ((13, 0), "sm_120"),  # not known: the settings that want least
    ],
)
def test_gpus_go_by_what_they_are_like(
    capability: tuple[int, int], arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert arch_of(torch.device("cuda", 0)) == arch


def test_a_gpu_too_old_for_the_kernels_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ValueError, match="Tesla T4 is sm_75; the kernels want sm_80 or newer"):
        arch_of(torch.device("cuda", 0))


def test_amd_gpus_go_by_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert arch_of(torch.device("cuda", 0)) == "gfx942"
