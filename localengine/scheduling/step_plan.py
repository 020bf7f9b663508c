"""What a scheduler is given for a step, and what it decides. Plain data."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestra.localengine.scheduling.cost import StepCost, StepLoad
from orchestra.localengine.settled_config import SettledConfig
from orchestra.policies.traffic import TrafficClass

__all__ = ["Hold", "PlannedRow", "StepBudget", "StepPlan"]

_MARGIN = 0.5  # how many typical errors a step is planned shorter than it may become, while nobody is behind
_LEAST_USE = 1.5  # a step may take this many times its fixed cost, whatever the targets


class Hold(enum.StrEnum):
    """Why the first waiting request of a class was not admitted in a step."""

    SLOTS = "every slot is taken"
    BLOCKS = "too few free blocks"
    ROOM = "the step is full"
    TURN = "another goes first"
    BATCH = "the batch at hand is not done"


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Bounds of one step: tokens, and predicted seconds.

    ``tpot`` bounds a step while an interactive request is decoding; ``ttft`` bounds what bulk may add to any other
    step, since an interactive request may arrive while it runs. A target for the time between tokens is one for
    nearly all requests, not for their mean, so that steps are planned shorter by what predictions miss.

    ``catch_up`` bounds what bulk may add while an interactive request is behind its target. Only bulk pays for
    that: were the prompts of other people to wait for it, too, steps would do the less the more people there are.
    """

    tokens: int
    ttft: float
    tpot: float
    catch_up: float = math.inf

    @classmethod
    def of(cls, config: SettledConfig, cost: StepCost, due: float = math.inf) -> StepBudget:
        """What an engine's settings allow on a machine whose steps cost that.

        ``due`` seconds from now an interactive request's next token keeps its mean time between tokens at the
        target; the most urgent one's. So a request that slow steps have set back catches up.
        """
        floor = _LEAST_USE * cost.base
        return cls(
            tokens=config.step_tokens,
            ttft=max(config.ttft_target_ms / 1000, floor),
            tpot=max(config.tpot_target_ms / 1000 / (1 + _MARGIN * cost.error), floor),
            catch_up=max(due / (1 + cost.error), floor),
        )


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """Compute ``count`` tokens of a sequence from position ``start`` on; draw a token where ``sampled``."""

    request_id: int
    epoch: int
    start: int
    count: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. ``displaced`` go back to waiting first, then ``admitted`` start running, then ``rows`` run.

    ``matched`` are blocks of the prefix cache with which an admitted request begins. Without rows nothing runs,
    and ``held`` says why for each class that has somebody waiting.
    """

    rows: tuple[PlannedRow, ...]
    admitted: tuple[int, ...]
    displaced: tuple[int, ...]
    matched: Mapping[int, tuple[int, ...]]
    held: Mapping[TrafficClass, Hold]
    load: StepLoad
    seconds: float
