"""What the database holds of a job is parsed once, however often the controller looks at it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lockstep.jobs.input import documents
from lockstep.jobs.running.orders import GANG_ORDER
from lockstep.jobs.running.states import JobState
from lockstep.testing.bench import Bench

NUM_JOBS = 4
WAIT = "import time; time.sleep(600)"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what is parsed: inputs by their jobs, orders by their gangs."""
    counts: Counter[str] = Counter()
    parse, read = documents.parse_document, GANG_ORDER.validate_python

    def parse_document(model: Any, *, document: object, source: str) -> Any:
        counts[source] += 1
        return parse(model, document=document, source=source)

    def validate_python(document: Any) -> Any:
        order = read(document)
        counts[order.gang_id] += 1
        return order

    monkeypatch.setattr(documents, "parse_document", parse_document)
    monkeypatch.setattr(GANG_ORDER, "validate_python", validate_python)
    return counts


def test_a_pass_over_running_jobs_parses_nothing_that_was_parsed_before(bench: Bench, parsed: Counter[str]) -> None:
    bench.settings = replace(bench.settings, max_running_jobs=NUM_JOBS)
    bench.restart()
    jobs = [bench.create(f"job_{number}", WAIT) for number in range(NUM_JOBS)]
    parsed.clear()  # what the bench looked at to record them
    for job in jobs:
        bench.step_until_state(job.job_id, JobState.RUNNING)
    bench.step()
    names = [name for job in jobs for name in (f"job {job.job_id}", f"{job.uid}-0")]
    assert parsed == dict.fromkeys(names, 1), "a start parses its input and its order once"
    for _ in range(3):
        bench.step()
    assert parsed == dict.fromkeys(names, 1)


def test_what_was_changed_in_the_database_is_parsed_again(bench: Bench, parsed: Counter[str]) -> None:
    job = bench.create("job", WAIT)
    bench.step_until_state("job", JobState.RUNNING)
    bench.store.update(job.uid, training_input={**job.training_input, "scheduling": {"maxRunningTime": "1s"}})
    assert bench.step_until_over("job").state is JobState.CANCELLED
