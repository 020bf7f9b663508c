"""What a job may be called."""

from __future__ import annotations

import secrets
import time

from orchestra.errors import InputError

__all__ = ["checked_name"]


def checked_name(name: str | None) -> str:
    """Return the name, or a new one where it is None. Raises InputError where no job can be called so."""
    if name is None:
        return time.strftime("job-%Y%m%d-%H%M%S-") + secrets.token_hex(3)
    if not name or len(name) > 200 or not name.isprintable() or name != name.strip():
        raise InputError(f"job name {name!r:.80}: must be 1 to 200 printable characters, without spaces around it")
    return name
