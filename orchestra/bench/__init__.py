"""An open-loop load test: calls at their instants, answered or not, and what becomes of them.

The core is pure: `load.arrivals`, `load.workload` and `load.trace` say who asks what and when,
`results.figures` what was measured, `results.operating_point` where to run. `load.generator` sends, targets
answer, `experiment` goes through the rates, and `report` shows what came of it. `contest` goes through the ways to
serve one load (`load.burst`) by an engine (`load.engine_target`), which `results.comparison` and `results.lessons`
tell apart.
"""

__all__: list[str] = []
