"""The clients that are compared."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from peer_environment import PeerEnvironment

__all__ = ["CLIENTS", "Client"]

_OPENAI = "openai==3.57.0"


@dataclass(frozen=True, slots=True)
class Client:
    """One client: its script, what it needs, and whether it can do without being told the limits.

    ``alone``: it carries the interactive calls and nothing else, which is as quick as they can be.
    """

    name: str
    script: str
    needs: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    learns: bool = False
    ours: bool = False
    alone: bool = False

    def command(self) -> list[str]:
        """Return the command that runs its script, its environment made. Raises NotInstalled."""
        script = Path(__file__).parent / "clients" / self.script
        python = sys.executable if self.ours else PeerEnvironment(self.needs, self.python).interpreter()
        return [str(python), str(script)]


CLIENTS = {
    client.name: client
    for client in (
        Client("orchestra", "orchestra_sdk.py", learns=True, ours=True),
        Client("floor", "openai_sdk.py", (_OPENAI,), learns=True, alone=True),
        Client("openai", "openai_sdk.py", (_OPENAI,), learns=True),
        Client("aiolimiter", "aiolimiter_buckets.py", ("aiolimiter==1.3.0", _OPENAI)),
        Client("litellm", "litellm_router.py", ("litellm==1.110.2",)),
        Client("token-throttle", "token_throttle_limiter.py", ("token-throttle==14.0.0", _OPENAI), python=(3, 12)),
        Client("async-batch-llm", "async_batch_llm_pool.py", ("async-batch-llm==0.28.0", _OPENAI)),
    )
}
"""Every client by its name: ours, the floor (the SDK with nothing but the interactive calls), the peers."""
