"""One workload through several load generators on one server: the parts of ``benchmarks/agreement.py``."""
