"""What is known of jobs, in one SQLite file. It decides nothing, and sends nothing.

``store`` is the whole, ``batch_ledger`` its part about batches, ``awaited_ledger`` that about the calls of awaited
jobs. ``line_insert``, ``line_ends`` and ``line_retry`` each write one thing about many lines at once. ``database``
is the file with its transactions, ``schema`` its tables. ``line`` and ``record`` are what all of this speaks of as
plain values, and ``job_name`` is what a job may be called. ``lock`` lets one process at a time run a job. All of
it blocks, and ``threads`` is where that is borne.
"""
