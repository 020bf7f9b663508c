"""An open-loop load test: calls at their instants, answered or not, and what becomes of them.

The core is pure: `arrivals`, `lengths`, `workload` and `trace` say who asks what and when, `figures` what was
measured, `operating_point` where to run. `generator` sends, `targets` answer, `experiment` goes through the rates.
"""

__all__: list[str] = []
