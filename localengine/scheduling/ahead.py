"""The step after the one at hand, planned before that one's tokens are known: where it takes no decision.

While a device computes a step, nothing of the next needs its tokens but the input of the rows, which can stay on
the device (so do vLLM's and SGLang's asynchronous schedulers). What a token decides is who has ended; a row of one
who has is computed in vain, and dropped.
"""

from __future__ import annotations

from orchestra.localengine.scheduling.cost import StepCost, StepLoad
from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.scheduling.state import SchedulerState
from orchestra.localengine.scheduling.step_plan import Hold, PlannedRow, StepBudget, StepPlan
from orchestra.policies.traffic import TrafficClass

__all__ = ["can_be_late", "plan_ahead"]

_UNTIL_SOMEBODY_ENDS = (Hold.SLOTS, Hold.BATCH)


def plan_ahead(state: SchedulerState, plan: StepPlan, budget: StepBudget, cost: StepCost) -> StepPlan | None:
    """The step in which everybody goes on by the token that ``plan``, not yet committed, draws.

    None where anything else might be decided: somebody waits who could be admitted, or is interactive and might
    displace bulk; a prompt is not computed to its end; a block is missing; with bulk in it, the step is longer
    than ``budget`` allows; or a draw depends on the token before it by more than its logits.
    """
    rows = []
    load = StepLoad()
    missing = dict.fromkeys(TrafficClass, 0)
    for row in plan.rows:
        seq = state.find(row.request_id)
        if seq is None or seq.epoch != row.epoch or not row.sampled or not _goes_on_blindly(seq):
            return None
        start = row.start + row.count
        missing[seq.traffic] += max(0, state.pool.blocks_for(start + 1) - len(seq.block_table))
        rows.append(PlannedRow(seq.request_id, seq.epoch, start, 1, sampled=True))
        load = load.plus_decode(start)
    if len(rows) < sum(map(len, state.running.values())):  # somebody runs and had no turn
        return None
    interactive, bulk = TrafficClass.INTERACTIVE, TrafficClass.BULK
    if state.waiting[interactive] or (state.waiting[bulk] and plan.held.get(bulk) not in _UNTIL_SOMEBODY_ENDS):
        return None
    seconds = cost.predict(load)
    if state.running[bulk] and seconds > (budget.tpot if state.running[interactive] else budget.ttft):
        return None
    pool = state.pool
    if sum(missing.values()) > pool.num_free or any(
        count and pool.num_held(c) + count > state.limits.blocks(c) for c, count in missing.items()
    ):
        return None
    return StepPlan(
        rows=tuple(rows),
        admitted=(),
        displaced=(),
        matched={},
        held=plan.held,
        load=load,
        seconds=seconds,
    )


def can_be_late(seq: Sequence, token_id: int | None) -> bool:
    """Whether the next step can be planned before anybody has looked at ``token_id``, the newest of ``seq``.

    If it is the last of a stop string, its row in the next is in vain. A first token is not kept waiting.
    """
    known_to_end = token_id in seq.end_ids or seq.num_output >= seq.max_tokens
    return not known_to_end and seq.constraint is None and seq.num_output > 1


def _goes_on_blindly(seq: Sequence) -> bool:
    """Whether ``seq`` has a token after its next one, which depends on that by its logits alone."""
    sampling = seq.sampling
    return (
        seq.constraint is None
        and not sampling.penalizes
        and seq.num_output >= sampling.min_tokens
        and seq.num_output + 1 < seq.max_tokens
    )
