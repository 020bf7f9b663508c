"""Calls that a program awaits, and that ride in batches.

``parking`` is a call's way, through ``post`` to the loop that carries batches; ``awaited`` are the calls of one
job, and ``leftovers`` the jobs of earlier programs.
"""
