"""Killed at any instant and started again, a job answers every line once and pays for none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from kill_lab import KillLab, Variant, kill_lab

RUNS = 210

FAULTS = {"lost_creations": 0.3, "refused_polls": 0.2, "lost_uploads": 0.3, "cut_results": 0.3}

VARIANTS = [
    Variant("completed"),
    Variant("faults", faults=FAULTS),
    Variant("expired", script={"end": "expired"}),
    Variant("expired with faults", script={"end": "expired"}, faults=FAULTS),
    Variant("cancelled by somebody", script={"end": "cancelled"}),
    Variant("stuck", deadline="20s", script={"end": None}),
    Variant("queue full", deadline="20s", options=("--batch-enqueued-tokens", "1500")),
    Variant("failed", script={"end": "failed"}),
    Variant("messages", kind="anthropic", faulty=12),
    Variant("messages with faults", kind="anthropic", faults=FAULTS),
    Variant("messages expired", kind="anthropic", script={"end": "expired"}),
    Variant("messages cancelled", kind="anthropic", script={"end": "cancelled"}),
    Variant("messages stuck", kind="anthropic", deadline="20s", script={"end": None}),
    Variant("messages queue full", kind="anthropic", options=("--batch-enqueued-requests", "250")),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillLab]:
    with kill_lab(tmp_path_factory.mktemp("killed")) as lab:
        yield lab


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_killed_at_any_instant(
    lab: KillLab, variant: Variant, soak: Callable[[int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = RUNS // len(VARIANTS)
    rounds = soak(whole)
    runs = [lab.run(variant, seed, most_kills=5 if rounds == whole else 2) for seed in range(rounds)]
    if rounds < whole:
        return
    stages: Counter[str] = sum((run.stages for run in runs), Counter())
    with capsys.disabled():
        print(
            f"\n{variant.name}: {len(runs)} runs, {sum(run.kills for run in runs)} kills, "
            f"{sum(run.unrecorded for run in runs)} with a batch that was created and not recorded "
            f"({', '.join(f'{count} {stage}' for stage, count in stages.most_common())}); paid twice: "
            f"{sum(run.ids_paid_twice for run in runs)} lines of batches, {sum(run.sync_again for run in runs)} "
            f"under way by themselves, {sum(run.both_ways for run in runs)} both ways; "
            f"{max(run.seconds for run in runs):.1f} s at most"
        )
