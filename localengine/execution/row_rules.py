"""What every runner asks of a row before it computes it, and which of its tokens' logits it computes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestra.localengine.models.spec import ModelSpec
from orchestra.localengine.step import RowInput

__all__ = ["check_blocks", "check_row", "wanted_of"]


def check_row(row: RowInput, spec: ModelSpec, block_size: int, *, least_token: int = 0) -> None:
    """Raise ValueError, naming the request and the fault, where ``row`` breaks the rules of :class:`RowInput`.

    ``least_token`` is the lowest token id that it may have. Which blocks it has is for `check_blocks`.
    """
    stop = row.start + len(row.token_ids)
    if not row.token_ids or row.start < 0:
        raise ValueError(f"request {row.request_id}: a row needs at least one token and a start of 0 or more")
    if stop > spec.max_position:
        raise ValueError(
            f"request {row.request_id}: position {stop - 1} is beyond the context of {spec.max_position}"
        )
    if stop > len(row.block_table) * block_size:
        raise ValueError(
            f"request {row.request_id}: {stop} tokens do not fit the {len(row.block_table)} blocks given"
        )
    if min(row.token_ids) < least_token or max(row.token_ids) >= spec.vocab_size:
        raise ValueError(f"request {row.request_id}: a token outside the vocabulary of {spec.vocab_size}")


def check_blocks(row: RowInput, blocks: Sequence[int], num_blocks: int) -> None:
    """Raise ValueError where one of ``blocks``, of the row's table, is not in a pool of ``num_blocks``."""
    if blocks and (min(blocks) < 0 or max(blocks) >= num_blocks):
        raise ValueError(f"request {row.request_id}: a block outside 0..{num_blocks - 1} in its table")


def wanted_of(row: RowInput) -> range:
    """The tokens of the row whose logits are needed, as offsets into its ``token_ids``."""
    end = len(row.token_ids)
    if row.targets:
        return range(end if row.sampling is not None else len(row.targets))
    return range(end - 1, end) if row.sampling is not None else range(0)
