"""What a KV pool takes, and how keys and values lie in one of float8."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orchestra.kernels.attention import plan_decode, plan_extend
from orchestra.kernels.kv_pool import FLOAT8, KvLayout, absmax_of, head_dim_of, unpacked, write_slots
from orchestra.kernels.rope_kv import rope_kv

CPU = torch.device("cpu")
PLAIN = [torch.float32, torch.float16, torch.bfloat16]
HEADS, HEAD_DIM, BLOCK_SIZE = 2, 16, 4


def layout(dtype: torch.dtype = FLOAT8, **changes: int) -> KvLayout:
    return KvLayout(**{"kv_heads": HEADS, "head_dim": HEAD_DIM, "block_size": BLOCK_SIZE, **changes}, dtype=dtype)


def float8_pool() -> Tensor:
    pool = layout().allocate(1, 3, CPU)[0]
    pool.view(torch.uint8).fill_(0x7F)  # NaN, in float32 too
    return pool


@pytest.mark.parametrize("dtype", PLAIN)
def test_a_plain_pool_has_keys_beside_values(dtype: torch.dtype) -> None:
    pools = layout(dtype).allocate(5, 3, CPU)
    assert (pools.shape, pools.dtype) == ((5, 3, HEADS, BLOCK_SIZE, 2 * HEAD_DIM), dtype)
    assert not pools.any()
    assert head_dim_of(pools[0]) == HEAD_DIM
    assert absmax_of(pools[0]) is None
    key, value = torch.randn(2, 1, HEAD_DIM)
    write_slots(pools[2], torch.tensor([5]), key, value)
    assert torch.equal(unpacked(pools[2])[0, 1, 1], torch.cat([key, value], 1)[0].to(dtype))
    assert pools.count_nonzero() == 2 * HEAD_DIM


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2), (torch.bfloat16, 2)])
def test_bytes_are_those_of_what_is_allocated(dtype: torch.dtype, size: int) -> None:
    one = layout(dtype)
    assert one.bytes_per_token == HEADS * 2 * HEAD_DIM * size
    assert one.allocate(2, 3, CPU).nbytes == 2 * 3 * one.bytes_per_block


def test_float8_takes_half_and_its_scales() -> None:
    one = KvLayout(kv_heads=8, head_dim=128, block_size=16, dtype=FLOAT8)
    assert one.bytes_per_token == 8 * (2 * 128 + 8)
    assert one.allocate(1, 2, CPU).nbytes == 2 * one.bytes_per_block


def test_each_token_and_head_has_a_scale_of_its_own() -> None:
    pool, size = float8_pool(), 10.0 ** torch.arange(-5, 5)[:, None]  # far apart, and beyond what e4m3 can tell
    keys, values = torch.randn(10, HEAD_DIM) * size, torch.randn(10, HEAD_DIM) / size
    slots = torch.randperm(3 * HEADS * BLOCK_SIZE)[:10]
    write_slots(pool, slots, keys, values)
    found = unpacked(pool).view(-1, 2, HEAD_DIM)
    for given, got in ((keys, found[slots, 0]), (values, found[slots, 1])):
        bound = torch.maximum(given.abs() / 16, given.abs().amax(1, keepdim=True) / 2**16)  # of three bits
        assert ((given - got).abs() <= bound * 1.001).all()
    others = [slot for slot in range(len(found)) if slot not in slots]
    assert found[others].isnan().all()


def test_a_copy_of_a_block_takes_its_scales_along() -> None:
    pool = float8_pool()
    slots = torch.arange(HEADS * BLOCK_SIZE)  # block 0
    write_slots(pool, slots, torch.randn(8, HEAD_DIM) * 50, torch.randn(8, HEAD_DIM))
    pool[2] = pool[0]
    assert torch.equal(unpacked(pool)[2], unpacked(pool)[0])
    assert unpacked(pool)[1].isnan().all()


def test_the_scales_are_where_they_are_said_to_be() -> None:
    pool = float8_pool()
    key, value = torch.randn(2, 1, HEAD_DIM)
    block, head, token = 2, 1, 3
    write_slots(pool, torch.tensor([(block * HEADS + head) * BLOCK_SIZE + token]), key, value)
    absmax = absmax_of(pool)
    assert absmax is not None
    width = pool.shape[-1]
    at = (block * HEADS + head) * BLOCK_SIZE * width // 4 + BLOCK_SIZE * HEAD_DIM // 2 + 2 * token
    assert absmax.flatten()[at : at + 2].tolist() == [key.abs().max(), value.abs().max()]


def test_zeros_stay_zeros() -> None:
    pool, zeros = float8_pool(), torch.zeros(1, HEAD_DIM)
    write_slots(pool, torch.tensor([0]), zeros, zeros)
    assert not unpacked(pool)[0, 0, 0].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float64}, "kept in float32, float16, bfloat16, float8_e4m3fn, not in torch.float64"),
        ({"block_size": 0}, "at least 1"),
        ({"head_dim": 15}, "even number of dimensions, not 15"),
    ],
)
def test_what_cannot_be_kept_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("capability", [(8, 0), (8, 6)])
def test_an_older_gpu_is_told_that_it_has_no_float8(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(ValueError, match=r"NVIDIA A100 is sm_8\d, and float8 keys and values want sm_89"):
        layout().allocate(1, 1, torch.device("cuda", 0))


def test_a_cpus_operations_refuse_float8() -> None:
    pool, angle = float8_pool(), torch.zeros(1, HEAD_DIM // 2)
    with pytest.raises(ValueError, match="float8 is for GPUs"):
        rope_kv(torch.zeros(1, 4 * HEAD_DIM), angle, angle, torch.zeros(1, 2, dtype=torch.int64), pool)
    with pytest.raises(ValueError, match="float8 is for GPUs"):
        plan_decode([[0]], [1], pool)
    with pytest.raises(ValueError, match="float8 is for GPUs"):
        plan_extend([[0]], [0], [2], pool, 4)
