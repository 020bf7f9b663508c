import pytest
import torch
from torch import Tensor

from orchestra.kernels.rope_kv import reference, torch_cpu


def angles(positions: Tensor, head_dim: int) -> Tensor:
    frequency = 10_000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return positions.double()[:, None] * frequency


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Rotation as multiplication of complex numbers, in float64: dimension i is real, i + D/2 imaginary."""
    half = x.shape[-1] // 2
    turned = (
        torch.complex(x[..., :half].double(), x[..., half:].double())
        * torch.polar(torch.ones_like(angle), angle)[:, None]
    )
    return torch.cat([turned.real, turned.imag], -1)


@pytest.mark.parametrize("module", [reference, torch_cpu])
@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (8, 2), (4, 1)])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_rotates_and_writes(module: object, tokens: int, heads: int, kv_heads: int, head_dim: int) -> None:
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim)
    before = qkv.clone()
    angle = angles(torch.randint(0, 500, (tokens,)), head_dim)
    pool = torch.full((5, kv_heads, 4, 2 * head_dim), float("nan"))
    tokens_at = torch.randperm(20)[:tokens]
    block, offset = tokens_at // 4, tokens_at % 4
    slots = (block[:, None] * kv_heads + torch.arange(kv_heads)) * 4 + offset[:, None]
    q = module.rope_kv(qkv, angle.cos().float(), angle.sin().float(), slots, pool)  # type: ignore[attr-defined]

    q_in, k_in, v_in = qkv.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], dim=1)
    torch.testing.assert_close(q.double(), rotated(q_in, angle), atol=1e-5, rtol=1e-5)
    written = pool[block, :, offset]  # [tokens, kv_heads, 2 * head_dim]
    torch.testing.assert_close(written[..., :head_dim].double(), rotated(k_in, angle), atol=1e-5, rtol=1e-5)
    assert torch.equal(written[..., head_dim:], v_in)
    pool[block, :, offset] = float("nan")
    assert pool.isnan().all()  # nothing else was touched
    assert torch.equal(qkv, before)


@pytest.mark.parametrize("module", [reference, torch_cpu])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
def test_normalises_queries_and_keys_before_they_turn(
    module: object, tokens: int, heads: int, kv_heads: int
) -> None:
    head_dim = 20
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim) * 3
    before = qkv.clone()
    weight = torch.randn(heads + kv_heads, head_dim)
    angle = angles(torch.randint(0, 500, (tokens,)), head_dim)
    pool = torch.zeros(5, kv_heads, 4, 2 * head_dim)
    slots = torch.arange(tokens)[:, None] * kv_heads * 4 + torch.arange(kv_heads) * 4
    cos, sin = angle.cos().float(), angle.sin().float()
    q = module.rope_kv(qkv, cos, sin, slots, pool, qk_norm=weight, eps=1e-5)  # type: ignore[attr-defined]

    vectors = qkv.view(tokens, -1, head_dim).double()
    both = vectors[:, :-kv_heads]
    both = both / (both.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(q.double(), rotated(both[:, :heads], angle), atol=1e-5, rtol=1e-5)
    written = pool.flatten(0, 2)[slots]
    torch.testing.assert_close(
        written[..., :head_dim].double(), rotated(both[:, heads:], angle), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(written[..., head_dim:].double(), vectors[:, -kv_heads:])
    assert torch.equal(qkv, before)
