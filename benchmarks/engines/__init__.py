"""One workload through several engines on this machine: the parts of ``benchmarks/engine.py``."""
