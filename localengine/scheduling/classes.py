"""What each traffic class may hold of the engine: slots, blocks, and a share of the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestra.localengine.scheduling.sequence import Sequence
from orchestra.localengine.settled_config import SettledConfig
from orchestra.policies.traffic import TrafficClass

__all__ = ["ClassLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLimits:
    """Interactive may hold everything; bulk leaves ``interactive_slots`` slots and ``interactive_blocks`` blocks.

    ``bulk_min_share`` is the share of the computed tokens that bulk gets even under endless interactive load; with
    0, interactive may take everything. A sequence that was displaced ``max_displacements`` times is *fixed*: it is
    admitted again only with all the blocks that it can ever need, and is never displaced after that.
    """

    max_num_seqs: int
    num_blocks: int
    interactive_slots: int = 0
    interactive_blocks: int = 0
    bulk_min_share: float = 0.0
    max_displacements: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.interactive_slots < self.max_num_seqs:
            raise ValueError(f"interactive_slots must be from 0 to {self.max_num_seqs - 1}")
        if not 0 <= self.interactive_blocks < self.num_blocks:
            raise ValueError(f"interactive_blocks must be from 0 to {self.num_blocks - 1}")
        if not 0 <= self.bulk_min_share < 1:
            raise ValueError("bulk_min_share must be at least 0 and below 1")

    @classmethod
    def of(cls, config: SettledConfig, num_blocks: int) -> ClassLimits:
        """What an engine's settings give to each class. Only the scheduler of classes keeps anything apart."""
        if config.scheduler != "classes":
            return cls(max_num_seqs=config.max_num_seqs, num_blocks=num_blocks)
        share = config.interactive_cache
        if share is None:
            share = config.interactive_slots / config.max_num_seqs
        return cls(
            max_num_seqs=config.max_num_seqs,
            num_blocks=num_blocks,
            interactive_slots=config.interactive_slots,
            interactive_blocks=int(num_blocks * share),
            bulk_min_share=config.bulk_min_share,
        )

    def slots(self, traffic: TrafficClass) -> int:
        """The most sequences of this class that run at once."""
        return self.max_num_seqs - (self.interactive_slots if traffic is TrafficClass.BULK else 0)

    def blocks(self, traffic: TrafficClass) -> int:
        """The most blocks that this class holds at once."""
        return self.num_blocks - (self.interactive_blocks if traffic is TrafficClass.BULK else 0)

    def resized(self, num_blocks: int) -> ClassLimits:
        """The same limits for another number of blocks, of which interactive has the same share."""
        kept = self.interactive_blocks * num_blocks // self.num_blocks
        return replace(self, num_blocks=num_blocks, interactive_blocks=kept)

    def is_fixed(self, seq: Sequence) -> bool:
        return seq.displacements >= self.max_displacements
