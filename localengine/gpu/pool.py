"""The paged KV pool on a device, and the blocks of it that were given up."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from orchestra.kernels.kv_pool import KvLayout
from orchestra.localengine.execution.row_rules import check_blocks
from orchestra.localengine.gpu.device import Device
from orchestra.localengine.step import RowInput

__all__ = ["PagedPool"]

_NOWHERE = numpy.empty(0, numpy.int32)


class PagedPool:
    """Keys and values of ``num_layers`` layers in ``num_blocks`` blocks. ``layers`` are the pools of each.

    The scheduler knows blocks by number, ``0 .. num_blocks - 1``; where in ``layers`` they lie is `places`.
    """

    def __init__(self, layout: KvLayout, num_layers: int, num_blocks: int, device: Device) -> None:
        self.layout = layout
        self._device = device
        # each by itself, so that one after the other can be replaced by a smaller one
        self.layers = [layout.allocate(1, num_blocks, device.torch_device)[0] for _ in range(num_layers)]
        self._place = numpy.arange(num_blocks, dtype=numpy.int32)  # -1: given up
        # by request, the tables of the last step: most are the same in the next, or have one block more
        self._tables: dict[int, tuple[Sequence[int], NDArray[numpy.int32]]] = {}

    def places(self, rows: Sequence[RowInput]) -> list[NDArray[numpy.int32]]:
        """Where the blocks of each row's table lie. Raises ValueError where there is none, or it was given up."""
        known, self._tables = self._tables, {}
        placed = []
        for row in rows:
            table, places = row.block_table, _NOWHERE
            seen, its = known.get(row.request_id, ((), _NOWHERE))
            if seen and table[: len(seen)] == seen:  # tuples of the same objects: far quicker than to read them
                places = its
            if len(places) < len(table):
                places = numpy.concatenate([places, self._new_places(row, table[len(places) :])])
            self._tables[row.request_id] = tuple(table), places
            placed.append(places)
        return placed

    def _new_places(self, row: RowInput, blocks: Sequence[int]) -> NDArray[numpy.int32]:
        check_blocks(row, blocks, len(self._place))
        places: NDArray[numpy.int32] = self._place[numpy.asarray(blocks, numpy.int64)]
        if places.min() < 0:
            raise ValueError(f"request {row.request_id}: a block in its table was given up")
        return places

    def give_up(self, blocks: Collection[int]) -> None:
        """Free the memory of ``blocks`` for good. The others keep their contents and numbers, not their places.

        Raises ValueError where none would be left.
        """
        gone = numpy.zeros(len(self._place), bool)
        gone[list(blocks)] = True
        kept = numpy.flatnonzero((self._place >= 0) & ~gone)
        if not len(kept):
            raise ValueError("one block of the pool must stay")
        held = torch.from_numpy(self._place[kept].astype(numpy.int64))
        for number in range(len(self.layers)):
            self._keep(number, held)
            self._device.release_cache()  # at once: the next, smaller one would be cut out of what this one left
        self._tables.clear()
        self._place[:] = -1
        self._place[kept] = numpy.arange(len(kept), dtype=numpy.int32)

    def _keep(self, number: int, held: Tensor) -> None:
        """Replace a layer by one of the places ``held`` alone."""
        device, dtype = self._device.torch_device, self.layout.dtype
        layer = self.layers[number].view(torch.uint8)  # which can be indexed whatever it holds
        try:
            fewer = layer.index_select(0, held.to(device))
        except RuntimeError as error:
            if not self._device.is_out_of_memory(error):
                raise
            # there is no room for both: by way of the host
            on_host = layer.cpu().index_select(0, held)
            self.layers[number] = layer = on_host
            self._device.release_cache()
            fewer = on_host.to(device)
        self.layers[number] = fewer.view(dtype)
