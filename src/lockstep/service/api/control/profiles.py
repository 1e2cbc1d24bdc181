"""Lockstep's own route for a profile of a running job."""

from __future__ import annotations

import uuid
from typing import Annotated, Final

from fastapi import Path

from lockstep.errors import ConflictError, InvalidInputError, LockstepError, NotFoundError, WrongStateError
from lockstep.heartbeat import MAX_PROFILE_STEPS, ProfileReport, ProfileRequest, ProfileState
from lockstep.jobs.running.orders import ReplicaPhase
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.control.replicas import profile_form
from lockstep.service.api.forms import ProfileForm
from lockstep.service.api.requests import AbstractRequest, Body, Context, Name, Project, parse_request
from lockstep.service.api.routes import make_router
from lockstep.service.store import JobRecord

DEFAULT_STEPS: Final = 20

router = make_router()

Replica = Annotated[str, Path(pattern=r"^[a-z]+-replica-[0-9]{1,4}$")]


class _ProfileBody(AbstractRequest):
    """The body of a request for a profile."""

    num_steps: int = DEFAULT_STEPS


@router.post("/jobs/{job_id}/replicas/{replica}:profile")
@requires_scope(Scope.SUBMITTER)
def profile(
    project: Project, job_id: Name, replica: Replica, body: Body, context: Context, principal: RequestPrincipal
) -> ProfileForm:
    """Requests a profile of the next training steps of a replica. Returns at once; the replica reports the profile.

    The files will be in the job's TensorBoard folder. The body is ``{"numSteps": 20}``.
    """
    num_steps = parse_request(_ProfileBody, body).num_steps
    if not 1 <= num_steps <= MAX_PROFILE_STEPS:
        raise InvalidInputError("numSteps", received=num_steps, allowed=f"1 to {MAX_PROFILE_STEPS}")
    job = context.jobs.get(project=project, job_id=job_id)
    check_profile(job, replica)
    request = ProfileRequest(request_id=uuid.uuid4().hex, num_steps=num_steps, name=replica)
    context.cluster.request_profile(f"{job.uid}-{job.attempt}", replica=replica, request=request)
    detail = f"{principal.label} requested a profile of {num_steps} steps of {replica}"
    context.jobs.record_event(job.uid, kind="profile", detail=detail)
    return profile_form(ProfileReport(request_id=request.request_id, state=ProfileState.REQUESTED, num_steps=num_steps))


def check_profile(job: JobRecord, replica: str) -> None:
    """Checks that a replica of a job can be profiled now.

    Args:
        job: the job.
        replica: the name of the replica.

    Raises:
        WrongStateError: If the job is not running, or the replica has not reported a training step.
        InvalidInputError: If the job is a batch prediction.
        NotFoundError: If the job has no such replica.
        ConflictError: If another profile of the replica is being recorded.
    """
    problem = _problem(job, replica)
    if problem is not None:
        raise problem


def _problem(job: JobRecord, replica: str) -> LockstepError | None:
    if "tensorboard" not in job.outputs:
        return InvalidInputError(f"job {job.job_id} is not a training job", allowed="only training is profiled")
    if job.state is not JobState.RUNNING:
        return WrongStateError(f"job {job.job_id} is {job.state}: only a running job can be profiled")
    statuses = {record.status.name: record.status for record in job.replicas}
    if replica not in statuses:
        return NotFoundError(f"job {job.job_id} has no such replica", received=replica, allowed=list(statuses))
    status = statuses[replica]
    if status.phase is ReplicaPhase.ENDED:
        return WrongStateError(f"replica {replica} of job {job.job_id} has ended")
    if status.progress is None or status.progress.step is None:
        return WrongStateError(
            f"replica {replica} of job {job.job_id} has reported no training step",
            action="wait until it trains; only fit under a Lockstep strategy, and loops that call "
            "lockstep.report_progress(step=...), can be profiled",
        )
    last = status.profile
    if last is not None and last.state in (ProfileState.RECORDING, ProfileState.UPLOADING):
        return ConflictError(f"a profile of replica {replica} is being recorded", action="try again when it is done")
    return None
