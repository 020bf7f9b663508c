"""One account under mixed load, carried by several clients in turn: the parts of ``benchmarks/mixed_load.py``."""
