"""Azure OpenAI's batches.

Source: learn.microsoft.com, "Getting started with Azure OpenAI batch deployments", and the REST reference. A batch
needs a deployment of its own kind (``GlobalBatch``, ``DataZoneBatch``), whose name is what its lines call the
model. The 24 hours are what it aims at: it is not ended by them.
"""

from __future__ import annotations

from dataclasses import replace

from orchestra.providers.azure import Azure
from orchestra.providers.base import endpoint_at
from orchestra.providers.batches.base import BatchOrder
from orchestra.providers.batches.openai import OpenAIBatches

__all__ = ["AzureBatches"]


class AzureBatches(OpenAIBatches):
    """A resource of Azure OpenAI, by its v1 API. Endpoints are named as the calls name them: by v1, or without."""

    dialect = Azure()
    traits = replace(OpenAIBatches.traits, hard_expiry=None)

    def endpoint_of(self, order: BatchOrder) -> str:
        return super().endpoint_of(order) if "/v1/" in order.path else str(endpoint_at(order.path))
