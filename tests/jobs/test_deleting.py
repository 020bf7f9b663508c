"""What is still under way at a provider when its job is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from diversion_lab import assert_answers, diversion_lab
from virtual_time import virtual

from orchestra.jobs.diversion.deleting import delete_job
from orchestra.testing import BatchScript, Reply


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("cancelling", [0.0, 600.0])
@virtual
async def test_a_batch_that_outlives_its_job_is_ended_and_told_of(tmp_path: Path, kind: str, cancelling: float):
    """Whoever let go of it could not cancel it: it would be paid to its end, and nobody knew."""
    config = {"kind": kind, "batch": {"expected_seconds": 60.0, "cancelling_seconds": 30.0}}
    at = "POST /v1/messages/batches/*" if kind == "anthropic" else "POST /v1/batches/*"
    script = BatchScript(end=None, running=1.0, answered=0, cancelling=cancelling)
    async with diversion_lab(
        tmp_path, config, routes={at: [Reply.error(503)] * 999}, batch_script=[script]
    ) as lab:
        job = await lab.submit(5, kind=kind, deadline="600s")
        assert_answers(await lab.done(job))
        assert lab.states(job) == ["abandoned"]
        del lab.provider.routes[at]
        store = lab.manager.store
        deletion = await delete_job(store, store.find("j") or job.record, lab.desk)
        (ended,) = [hit for hit in lab.provider.log if hit.path.endswith("/cancel") and hit.status == 200]
        assert ended is not None
        if cancelling:
            (left,) = deletion.left
            assert "it was still under way, and is being cancelled now" in left
        else:
            assert deletion.left == ()
