"""An open-loop load test: calls at their instants, answered or not, and what becomes of them.

The core is pure: `load.arrivals`, `load.lengths`, `load.workload` and `load.trace` say who asks what and when,
`results.figures` what was measured, `results.operating_point` where to run. `load.generator` sends, targets
answer, `experiment` goes through the rates, and `report` shows what came of it.
"""

__all__: list[str] = []
