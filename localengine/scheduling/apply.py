"""Carry a plan out: move sequences, hand out blocks, and book what the step computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import StepPlan
from orchestra.localengine.step import PENDING, DrawExtras, RowInput, RowOutput
from orchestra.policies.traffic import TrafficClass

__all__ = ["apply_plan", "commit_step"]


def apply_plan(state: SchedulerState, plan: StepPlan) -> list[RowInput]:
    """Do what the plan decided about slots and blocks; return the rows to run.

    Nothing counts as computed yet: a step that is given up is not committed, and its rows come again. The token of
    a row that was planned ahead is PENDING.
    """
    for request_id, blocks in plan.matched.items():  # before anybody might let go of them, or evict them
        state.pool.retain(blocks, state.get(request_id).traffic)
    for request_id in plan.displaced:
        state.displace(request_id)
    for request_id in plan.admitted:
        state.admit(request_id, plan.matched.get(request_id, ()))
    rows = []
    for row in plan.rows:
        seq = state.get(row.request_id)
        end = row.start + row.count
        if (missing := state.pool.blocks_for(end) - len(seq.block_table)) > 0:
            seq.block_table += state.pool.allocate(missing, seq.traffic)
        rows.append(
            RowInput(
                request_id=seq.request_id,
                epoch=seq.epoch,
                token_ids=tuple(seq.token_ids[row.start : end]) or (PENDING,),
                start=row.start,
                block_table=tuple(seq.block_table),
                sampling=seq.sampling if row.sampled else None,
                noise_key=seq.noise_key,
                extras=_extras(seq) if row.sampled else None,
                targets=_targets(seq, row.start, end),
                num_top=seq.sampling.prompt_logprobs or 0,
            )
        )
    return rows


def commit_step(
    state: SchedulerState, plan: StepPlan, outputs: Iterable[RowOutput]
) -> list[tuple[Sequence, RowOutput]]:
    """Book what a step that ran has computed; return each draw with its sequence, in the plan's order.

    A row whose sequence was removed or displaced while the step ran is dropped, token and all.
    """
    by_row = {(output.request_id, output.epoch): output for output in outputs}
    tokens = []
    computed = dict.fromkeys(TrafficClass, 0)
    for row in plan.rows:
        seq = state.find(row.request_id)
        if seq is None or seq.epoch != row.epoch:
            continue
        seq.num_computed += row.count
        computed[seq.traffic] += row.count
        seq.last_turn = state.turns
        state.turns += 1
        if row.count > seq.num_computed % state.pool.block_size:  # it has filled a block
            state.publish(seq)
        output = by_row.get((row.request_id, row.epoch))
        if output is not None:
            # what a displaced prompt computes again is known already
            seq.prompt_scores += output.targets[len(seq.prompt_scores) - row.start :]
        if row.sampled:
            assert output is not None
            assert output.token_id is not None, "a sampled row has a token"
            seq.token_ids.append(output.token_id)
            tokens.append((seq, output))
    _book_bulk_share(state, computed)
    return tokens


def _extras(seq: Sequence) -> DrawExtras | None:
    sampling = seq.sampling
    banned = seq.end_ids if seq.num_output < sampling.min_tokens else ()
    if not (sampling.penalizes or banned or seq.constraint):
        return None
    return DrawExtras(
        history=tuple(seq.token_ids) if sampling.penalizes else (),
        num_prompt=seq.num_prompt,
        banned=tuple(banned),
        allowed=seq.constraint.allowed() if seq.constraint else None,
    )


def _targets(seq: Sequence, start: int, end: int) -> tuple[int, ...]:
    """The prompt's tokens that follow those at ``start .. end``, where their scores are wanted and not known."""
    if seq.sampling.prompt_logprobs is None or len(seq.prompt_scores) >= min(end, seq.num_prompt - 1):
        return ()
    return tuple(seq.token_ids[start + 1 : min(end + 1, seq.num_prompt)])


def _book_bulk_share(state: SchedulerState, computed: Mapping[TrafficClass, int]) -> None:
    """Bulk is owed its share of every token computed while it has work; what it gets counts against that.

    The debt is bounded both ways: idle capacity that bulk used earlier is not held against it, and a long wait for
    a slot does not turn into many steps with a giant share for bulk.
    """
    share = state.limits.bulk_min_share
    if not share or not (state.running[TrafficClass.BULK] or state.waiting[TrafficClass.BULK]):
        state.bulk_owed = 0.0
        return
    due = share * sum(computed.values())
    owed = state.bulk_owed + due - computed[TrafficClass.BULK]
    state.bulk_owed = min(max(owed, 0.0), due + state.pool.block_size)
