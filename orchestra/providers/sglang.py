"""SGLang's server.

Sources: sgl-project/sglang, ``entrypoints/openai/protocol.py`` and the documentation of its arguments:
``priority``, higher is served earlier, needs ``--enable-priority-scheduling``; running work gives way to what is
above it by ``--priority-scheduling-preemption-threshold`` (10). A full queue is a 503, or the first event of a
stream with status 200; plain errors have no ``error`` around them.
"""

from __future__ import annotations

import re
from typing import ClassVar

from orchestra.policies.traffic import TrafficClass
from orchestra.providers.self_hosted import SelfHosted

__all__ = ["SGLang"]


class SGLang(SelfHosted):
    """An SGLang server. With its defaults, running bulk calls give way to interactive ones."""

    priorities: ClassVar = {TrafficClass.INTERACTIVE: 10, TrafficClass.BULK: 0}
    is_full = re.compile(rf"{SelfHosted.is_full.pattern}|higher priority request", re.IGNORECASE)
