"""``python -m orchestra`` is the command ``orchestra``."""

from __future__ import annotations

from orchestra.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
