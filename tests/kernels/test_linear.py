import pytest
import torch

from orchestra.kernels.linear import reference, torch_cpu

SHAPES = [(960, 576), (3072, 576), (576, 1536), (300, 64), (7, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 16, 33])
def test_agrees_with_the_reference_and_with_float64(shape: tuple[int, int], rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    x = torch.randn(rows, shape[1], generator=generator)
    exact = x.double() @ weight.double().T
    for module in (reference, torch_cpu):
        y = module.linear(x, module.pack(weight))
        assert y.shape == (rows, shape[0])
        torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=1e-5)


def test_the_public_fallback_serves_where_the_private_operators_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_cpu, "_onednn_works", lambda: False)
    weight, x = torch.randn(40, 24), torch.randn(5, 24)
    packed = torch_cpu.pack(weight)
    assert not packed.is_mkldnn
    y = torch_cpu.linear(x, packed)
    assert y.is_contiguous()
    torch.testing.assert_close(y, x @ weight.T, atol=1e-5, rtol=1e-5)


def test_a_probe_that_finds_wrong_numbers_turns_packing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_cpu, "_onednn_pack", lambda weight: weight)
    monkeypatch.setattr(torch_cpu, "_onednn_linear", lambda x, packed: x @ packed.T + 1)
    assert not torch_cpu._onednn_works.__wrapped__()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.skipif(not torch_cpu._onednn_works(), reason="this torch has no oneDNN packing")
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536)])
def test_a_row_has_the_same_bits_alone_and_among_others(shape: tuple[int, int]) -> None:
    weight, x = torch.randn(shape), torch.randn(260, shape[1])
    packed = torch_cpu.pack(weight)
    whole = torch_cpu.linear(x, packed)
    for rows in (1, 2, 3, 8, 17, 64, 259):
        assert torch.equal(torch_cpu.linear(x[:rows], packed), whole[:rows])
