"""Model operations, one folder each.

``reference.py`` is the executable specification in plain torch; ``torch_cpu.py`` is the fast path on a CPU,
with the same signature. Nothing here imports anything else of ours.
"""
