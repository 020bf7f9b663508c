"""How much of a device's memory the KV pool gets: arithmetic on what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.localengine.models.capacity import human

__all__ = ["DeviceMemory"]

_SHARE = 0.9  # of what is free; the rest is for what was not measured, and for other processes
_GRAPH_BYTES = 16 << 20  # that the driver takes for a recorded step, beside the memory that it computes in


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes on a device once a model's weights are there.

    ``free`` of ``total``. ``step_peak`` is the most that the largest step takes beside weights and pool, and
    ``decode_peak`` the most that the largest recorded one does, of which there are ``graphs``.
    """

    free: int
    total: int
    step_peak: int
    decode_peak: int
    graphs: int

    @property
    def graph_bytes(self) -> int:
        """About what recorded steps take: they share the memory that the largest computes in."""
        return self.decode_peak + self.graphs * _GRAPH_BYTES if self.graphs else 0

    @property
    def kv_bytes(self) -> int:
        """What is left for the pool; below 0 where even the rest does not fit."""
        return int(self.free * _SHARE) - self.step_peak - self.graph_bytes

    def blocks(self, block_bytes: int, kv_bytes: int | None = None) -> int:
        """How many blocks of ``block_bytes`` the pool gets: of ``kv_bytes``, or of all that is left.

        Raises ValueError where not one block fits, or ``kv_bytes`` are more than is left.
        """
        if kv_bytes is not None and kv_bytes > self.kv_bytes:
            raise ValueError(f"kv_bytes is {human(kv_bytes)}, and {self._told()}: lower it")
        if kv_bytes is not None and kv_bytes < block_bytes:
            raise ValueError(
                f"a KV cache of {human(kv_bytes)} holds no block, which takes {human(block_bytes)}: raise kv_bytes"
            )
        blocks = (self.kv_bytes if kv_bytes is None else kv_bytes) // block_bytes
        if blocks < 1:
            raise ValueError(
                f"no block of the KV cache fits, which takes {human(block_bytes)}: {self._told()}. Free some of "
                "the GPU's memory, or choose a smaller model, or a lower step_tokens"
            )
        return blocks

    def describe(self) -> str:
        """Two sentences for people."""
        told = f"Of {human(self.total)} on the device {human(self.free)} were free beside the weights. "
        told += f"A step takes up to {human(self.step_peak)}"
        if self.graphs:
            told += f", and {self.graphs} recorded ones about {human(self.graph_bytes)}"
        return told + "."

    def _told(self) -> str:
        left = human(max(self.kv_bytes, 0))
        return (
            f"{left} are left for the KV cache of the {human(self.free)} that are free: a step takes up to "
            f"{human(self.step_peak)}, recorded ones {human(self.graph_bytes)}, and a tenth stays free"
        )
