"""Converts a job's replicas to JSON."""

from __future__ import annotations

from lockstep.heartbeat import ProfileReport
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.running.progress import Progress
from lockstep.service.api.forms import ProfileForm, ProgressForm, ReplicaForm
from lockstep.service.store import JobRecord, ReplicaRecord


def replica_form(replica: ReplicaRecord, *, simulated: bool) -> ReplicaForm:
    """Returns the status of a replica and its machine as JSON."""
    machine = describe_machine(replica.machine_type, accelerator=replica.accelerator)
    status = replica.status
    end = status.end
    return {
        "name": status.name,
        "phase": status.phase.value,
        "machine": f"{machine} (simulated)" if simulated else machine,
        "host": status.host,
        "pid": status.pid,
        "placedTime": status.placed_time_s,
        "startedTime": status.started_time_s,
        "endedTime": status.ended_time_s,
        "seenTime": status.seen_time_s,
        "cpuSeconds": status.usage.cpu_s,
        "wallSeconds": status.usage.wall_s,
        "peakMemoryBytes": status.usage.peak_memory_bytes,
        "metrics": dict(status.metrics),
        "progress": None if status.progress is None else progress_form(status.progress),
        "profile": None if status.profile is None else profile_form(status.profile),
        "end": None if end is None else end.describe(),
        "numLogEntries": None if end is None else end.num_log_entries,
        "restarts": [
            {"number": restart.number, "time": restart.time_s, "reason": restart.reason} for restart in status.restarts
        ],
    }


def job_progress_form(job: JobRecord) -> ProgressForm | None:
    """Returns the progress of a job as JSON: the progress of the first replica that reports any, else None."""
    reported = (replica.status.progress for replica in job.replicas)
    progress = next((progress for progress in reported if progress is not None), None)
    return None if progress is None else progress_form(progress)


def profile_form(report: ProfileReport) -> ProfileForm:
    """Returns the report about a profile as JSON."""
    return {
        "id": report.request_id,
        "state": report.state.value,
        "numSteps": report.num_steps,
        "files": [f"tensorboard/{report.folder}/{name}" for name in report.files],
        "problem": report.problem or None,
    }


def progress_form(progress: Progress) -> ProgressForm:
    """Returns a program's progress as JSON."""
    return {
        "time": progress.time_s,
        "step": progress.step,
        "epoch": progress.epoch,
        "metrics": dict(progress.metrics),
        "notFinite": list(progress.not_finite),
        "stepsPerSecond": progress.steps_per_s,
        "examplesPerSecond": progress.examples_per_s,
        "text": progress.describe(),
    }
