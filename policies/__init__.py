"""Decisions, one a file: pure functions and dataclasses with an injected clock and no I/O.

Nothing here imports anything else of ours.
"""
