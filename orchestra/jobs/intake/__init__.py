"""How lines come in: read, checked, and put into the ledger.

``sources`` are where lines come from, and ``line_parser`` reads one. ``inspection`` checks a whole file before
that, ``survey`` counts what it would ask for, and ``intake`` takes it in.
"""
