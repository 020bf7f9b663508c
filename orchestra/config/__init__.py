"""The settings, as pydantic models: `orchestra.toml`, or a dict with the same keys.

Every key is checked before anything runs; an unknown one is an error that names the place and the nearest known
key.
"""

from __future__ import annotations

from orchestra.config.account import LimitsConfig, PriceConfig, ProviderConfig, ServiceTiersConfig
from orchestra.config.batch import BatchConfig
from orchestra.config.reading import default_config, load_config, parse_config
from orchestra.config.settings import (
    LOCAL,
    BudgetConfig,
    BulkConfig,
    Config,
    LocalConfig,
    ModelConfig,
    NetworkConfig,
    ObserveConfig,
    TrafficConfig,
)

__all__ = [
    "LOCAL",
    "BatchConfig",
    "BudgetConfig",
    "BulkConfig",
    "Config",
    "LimitsConfig",
    "LocalConfig",
    "ModelConfig",
    "NetworkConfig",
    "ObserveConfig",
    "PriceConfig",
    "ProviderConfig",
    "ServiceTiersConfig",
    "TrafficConfig",
    "default_config",
    "load_config",
    "parse_config",
]
