"""How to install what an extra adds, whatever Orchestra itself was installed from.

A command that named our own distribution would ask a package index for it, and there the name may be another's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

__all__ = ["EXTRAS", "install", "pip_install"]

EXTRAS = {
    "local": (
        "gguf>=0.17",
        "jinja2>=3.1.6",
        "llguidance>=1.9",
        "numpy>=1.26",
        "safetensors>=0.5",
        "tokenizers>=0.21",
        "torch>=2.6",
    ),
    "plot": ("matplotlib>=3.9",),
    "otel": ("opentelemetry-api>=1.30", "opentelemetry-sdk>=1.30"),
    "prometheus": ("prometheus-client>=0.21",),
}
"""What each extra that a message may name requires, as ``pyproject.toml`` has it."""


def install(extra: str) -> str:
    """Return the command that installs what ``extra`` adds."""
    return pip_install(EXTRAS[extra])


def pip_install(requirements: Iterable[str]) -> str:
    """Return the command that installs ``requirements``, for a shell."""
    return f"pip install {shlex.join(requirements)}"
