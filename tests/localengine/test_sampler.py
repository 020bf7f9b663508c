import torch

from orchestra.localengine.execution.sampler import draw
from orchestra.localengine.request import SamplingParams

GREEDY = SamplingParams(temperature=0)


def logits(rows: int, vocab: int = 500) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(5)) * 2


def test_no_rows() -> None:
    assert draw(torch.empty(0, 10), [], [], []) == []


def test_greedy_rows_take_the_largest() -> None:
    scores = logits(4)
    assert draw(scores, [GREEDY] * 4, [0] * 4, [0] * 4) == scores.argmax(-1).tolist()


def test_a_row_is_drawn_alike_alone_and_among_others() -> None:
    params = [
        GREEDY,
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=3, seed=4),
        SamplingParams(temperature=1.3, top_p=0.5),
        GREEDY,
        SamplingParams(temperature=2.0, top_k=50, top_p=0.9),
    ]
    scores, keys, positions = logits(6), [3, -1, 2**64 - 1, 2**70 + 5, 0, 12345678901234567890], [5, 0, 9, 9, 1, 4]
    together = draw(scores, params, keys, positions)
    alone = [draw(scores[i : i + 1], [params[i]], [keys[i]], [positions[i]])[0] for i in range(6)]
    assert together == alone
    backwards = draw(scores.flip(0), params[::-1], keys[::-1], positions[::-1])
    assert backwards == together[::-1]


def test_keys_count_by_their_64_bits() -> None:
    hot = [SamplingParams(temperature=3.0)]
    many = [draw(logits(1), hot, [key], [0])[0] for key in range(40)]
    assert len(set(many)) > 20
    assert draw(logits(1), hot, [-1], [0]) == draw(logits(1), hot, [2**64 - 1], [0])


def test_the_smallest_temperatures_are_greedy() -> None:
    scores = logits(3)
    params = [SamplingParams(temperature=t) for t in (1e-300, 1e-38, 1e-9)]
    assert draw(scores, params, [1, 2, 3], [0, 0, 0]) == scores.argmax(-1).tolist()


def test_a_top_k_beyond_every_vocabulary_is_off() -> None:
    scores = logits(3)
    sampled = [draw(scores, [SamplingParams(top_k=k)] * 3, [1, 2, 3], [0] * 3) for k in (0, 500, 2**70)]
    assert sampled[0] == sampled[1] == sampled[2]
