"""Model operations, one folder each.

``reference.py`` is the executable specification in plain torch; ``torch_cpu.py`` is the fast path on a CPU, and
``triton_*.py`` the one on a GPU, with the same signature. The last need Triton, and are imported only where they
are asked for. Nothing here imports anything else of ours.
"""
