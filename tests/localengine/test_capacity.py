import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestra.localengine.models import capacity
from orchestra.localengine.models.capacity import (
    available_memory,
    default_kv_bytes,
    plan_capacity,
    weight_bytes,
    weight_values,
)
from orchestra.localengine.models.spec import ModelSpec

SMOLLM2 = ModelSpec(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope_theta=100_000.0,
    tie_embeddings=True,
)


def test_parameters_of_published_models() -> None:
    assert weight_values(SMOLLM2) == 134_515_008
    llama3_8b = replace(
        SMOLLM2,
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        tie_embeddings=False,
    )
    assert weight_values(llama3_8b) == 8_030_261_248


def test_bytes_and_blocks() -> None:
    plan = plan_capacity(SMOLLM2, block_size=16, kv_bytes=100_000_000)
    assert plan.kv_bytes_per_token == 46_080
    assert plan.kv_bytes_per_block == 737_280
    assert plan.num_blocks == 135
    assert plan.kv_bytes == 99_532_800
    assert plan.max_tokens == plan.max_context == 2160
    assert plan.weight_bytes == (134_515_008 + 49_152 * 576) * 4  # the tied embedding is kept twice


@pytest.mark.parametrize(("tokens", "requests"), [(1, 135), (17, 135), (18, 67), (2160, 1), (2161, 0)])
def test_concurrency_counts_in_blocks(tokens: int, requests: int) -> None:
    assert plan_capacity(SMOLLM2, block_size=16, kv_bytes=100_000_000).concurrency(tokens) == requests


def test_the_longest_request_is_bounded_by_the_context() -> None:
    assert plan_capacity(SMOLLM2, block_size=16, kv_bytes=10**9).max_context == 8192


def test_what_it_says() -> None:
    text = plan_capacity(SMOLLM2, block_size=16, kv_bytes=1 << 30).describe()
    assert text == (
        "Weights take 651 MB and the KV cache 1.07 GB, which is 23,296 tokens in 1,456 blocks of 16. "
        "That holds 45 requests of 512 tokens at once, or 2 of the longest possible, 8,192."
    )


def test_the_default_is_a_quarter_of_the_free_memory_and_capped() -> None:
    assert default_kv_bytes(1 << 30) == 1 << 28
    assert default_kv_bytes(1 << 40) == 1 << 30
    assert default_kv_bytes(-5) == 0
    assert plan_capacity(SMOLLM2, block_size=16, free_bytes=40_000_000).num_blocks == 13
    assert plan_capacity(SMOLLM2, block_size=16).num_blocks >= 1


def test_too_little_names_the_remedy() -> None:
    with pytest.raises(
        ValueError, match=r"700 KB holds no block of 16 tokens, which takes 737 KB: raise kv_bytes"
    ):
        plan_capacity(SMOLLM2, block_size=16, kv_bytes=700_000)
    with pytest.raises(ValueError, match="raise kv_bytes, or free some memory"):
        plan_capacity(SMOLLM2, block_size=16, free_bytes=-1)
    with pytest.raises(ValueError, match="block_size"):
        plan_capacity(SMOLLM2, block_size=0)
    with pytest.raises(ValueError, match="at least 1 token"):
        plan_capacity(SMOLLM2, block_size=16).concurrency(0)


def test_free_memory_respects_a_containers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = available_memory()
    assert whole > 1 << 20
    (tmp_path / "memory.max").write_text("50000000\n")
    (tmp_path / "memory.current").write_text("30000000\n")
    (tmp_path / "memory.stat").write_text("anon 20000000\ninactive_file 4000000\n")
    monkeypatch.setattr(capacity, "_CGROUPS", ((tmp_path, "memory.max", "memory.current", "inactive_file"),))
    assert available_memory() == 24_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() > 24_000_000


def test_int8_takes_a_byte_a_number_but_for_the_lookup_table() -> None:
    plan = plan_capacity(SMOLLM2, block_size=16, kv_bytes=1 << 30, precision="int8")
    embedding, norms = 49_152 * 576, 61 * 576
    rows = 576 + 2 * 192 + 576 + 2 * 1536  # of 576 columns, which become 1024; down_proj has 1536
    matrices = 49_152 * (1024 + 12) + 30 * (rows * (1024 + 12) + 576 * (1536 + 12))
    assert plan.weight_bytes == matrices + 4 * (embedding + norms)
    assert plan.describe().startswith("Weights take 334 MB and the KV cache 1.07 GB")
    untied = replace(SMOLLM2, tie_embeddings=False)
    assert weight_bytes(untied, "int8") == weight_bytes(SMOLLM2, "int8")
    assert weight_bytes(untied) == weight_bytes(SMOLLM2)


def test_layers_with_a_window_are_said_to_take_as_much() -> None:
    windowed = replace(SMOLLM2, sliding_window=512, sliding_layers=frozenset(range(20)))
    plan = plan_capacity(windowed, block_size=16, kv_bytes=1 << 30)
    assert plan.num_blocks == plan_capacity(SMOLLM2, block_size=16, kv_bytes=1 << 30).num_blocks
    assert plan.describe().endswith("The KV of its 20 layers with a window is kept for the whole context, too.")


def test_it_needs_no_torch() -> None:
    """A host without the engine's libraries can plan what fits."""
    code = (
        "import sys; sys.modules['torch'] = None; import orchestra.localengine.models.capacity as c; "
        "import orchestra.localengine.models.spec; print(c.available_memory() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr
