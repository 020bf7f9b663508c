"""vLLM's server.

Sources: vllm-project/vllm, ``entrypoints/openai/chat_completion/protocol.py`` (``priority``: lower is served
earlier, and refused unless the server runs with ``--scheduling-policy priority``),
``entrypoints/serve/utils/error_response.py`` (``code`` is the status, an integer), pull request 49445 (a bounded
queue answers 503).
"""

from __future__ import annotations

from typing import ClassVar

from orchestra.policies.traffic import TrafficClass
from orchestra.providers.self_hosted import SelfHosted

__all__ = ["VLLM"]


class VLLM(SelfHosted):
    """A vLLM server. Calls that name no priority have 0 there, as our interactive ones do."""

    priorities: ClassVar = {TrafficClass.INTERACTIVE: 0, TrafficClass.BULK: 10}
