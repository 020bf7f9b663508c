"""Carry a plan out: move sequences, hand out blocks, and book what the step computed."""

from __future__ import annotations

from collections.abc import Iterable

from orchestra.localengine.plan import StepPlan
from orchestra.localengine.sequence import Sequence
from orchestra.localengine.state import SchedulerState
from orchestra.localengine.step import RowInput, RowOutput
from orchestra.policies.traffic import TrafficClass

__all__ = ["apply_plan", "commit_step"]


def apply_plan(state: SchedulerState, plan: StepPlan) -> list[RowInput]:
    """Do what the plan decided about slots and blocks; return the rows to run."""
    for request_id in plan.displaced:
        state.displace(request_id)
    for request_id in plan.admitted:
        state.admit(request_id)
    rows = []
    for row in plan.rows:
        seq = state.find(row.request_id)
        assert seq is not None, "the plan is of another state"
        end = row.start + row.count
        if (missing := state.pool.blocks_for(end) - len(seq.block_table)) > 0:
            seq.block_table += state.pool.allocate(missing)
        seq.last_turn = state.turns
        state.turns += 1
        rows.append(
            RowInput(
                request_id=seq.request_id,
                epoch=seq.epoch,
                token_ids=tuple(seq.token_ids[row.start : end]),
                start=row.start,
                block_table=tuple(seq.block_table),
                sampling=seq.sampling if row.sampled else None,
                noise_key=seq.noise_key,
            )
        )
    _book_bulk_share(state, plan)
    return rows


def commit_step(state: SchedulerState, plan: StepPlan, outputs: Iterable[RowOutput]) -> list[tuple[Sequence, int]]:
    """Book what a step that ran has computed; return each drawn token with its sequence, in the plan's order.

    A row whose sequence was removed or displaced while the step ran is dropped, token and all.
    """
    drawn = {(output.request_id, output.epoch): output.token_id for output in outputs}
    tokens = []
    for row in plan.rows:
        seq = state.find(row.request_id)
        if seq is None or seq.epoch != row.epoch:
            continue
        seq.num_computed += row.count
        if row.sampled:
            token_id = drawn[row.request_id, row.epoch]
            seq.token_ids.append(token_id)
            tokens.append((seq, token_id))
    return tokens


def _book_bulk_share(state: SchedulerState, plan: StepPlan) -> None:
    """Bulk is owed its share of every token computed while it has work; what it gets counts against that.

    The debt is bounded both ways: idle capacity that bulk used earlier is not held against it, and a long wait for
    a slot does not turn into many steps with a giant share for bulk.
    """
    bulk = state.running[TrafficClass.BULK]
    share = state.limits.bulk_min_share
    if not share or not (bulk or state.waiting[TrafficClass.BULK]):
        state.bulk_owed = 0.0
        return
    total = sum(row.count for row in plan.rows)
    got = sum(row.count for row in plan.rows if row.request_id in bulk)
    due = share * total
    state.bulk_owed = min(max(state.bulk_owed + due - got, 0.0), due + state.pool.block_size)
