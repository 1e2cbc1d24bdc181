"""Lockstep's own route for a shell in a replica, over a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import Annotated, Final

import anyio
from fastapi import APIRouter, Path, WebSocket
from starlette.websockets import WebSocketDisconnect

from lockstep.clusters import AbstractShell
from lockstep.errors import (
    InvalidInputError,
    LockstepError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
    WrongStateError,
)
from lockstep.jobs.running.shell_frames import (
    SHELL_END,
    SHELL_REQUEST,
    FrameKind,
    ShellEnd,
    ShellRequest,
    encode_frame,
    parse_shell_request,
)
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Principal, Scope
from lockstep.service.api.access import RequestPrincipal, requires_scope
from lockstep.service.api.answers import answer
from lockstep.service.api.requests import JobName, Project
from lockstep.service.context import ServiceContext
from lockstep.service.control.job_inputs import order_of, training_input_of
from lockstep.service.store import DATABASE_FAULTS, JobRecord, describe_fault

MAX_SHELLS: Final = 16
"""The maximum number of open shells of one service: each occupies a thread."""

REQUEST_TIMEOUT_S: Final = 10.0
RECEIVE_TIMEOUT_S: Final = 0.5
MAX_WORD_LENGTH: Final = 80

router = APIRouter()

_open = threading.Semaphore(MAX_SHELLS)

Replica = Annotated[str, Path(pattern=r"^[a-z]+-replica-[0-9]{1,4}$")]


@router.websocket("/jobs/{job_id}/replicas/{replica}:exec")
@requires_scope(Scope.SUBMITTER)
async def shell(
    websocket: WebSocket, project: Project, job_id: JobName, replica: Replica, principal: RequestPrincipal
) -> None:
    """Opens a shell. The client sends a `ShellRequest` as text; then both sides send frames."""
    context: ServiceContext = websocket.app.state.context
    try:
        job = await anyio.to_thread.run_sync(
            partial(_check, context, project=project, job_id=job_id, replica=replica, principal=principal)
        )
    except LockstepError as error:
        await websocket.send_denial_response(answer(error))
        return
    if not _open.acquire(blocking=False):
        await websocket.send_denial_response(answer(OverloadedError(f"{MAX_SHELLS} shells are open already")))
        return
    try:
        await websocket.accept()
        await _serve(websocket, context, job, replica=replica, principal=principal)
    finally:
        _open.release()


def _check(context: ServiceContext, *, project: str, job_id: str, replica: str, principal: Principal) -> JobRecord:
    job = context.jobs.get(project=project, job_id=job_id)
    if principal.label != job.submitted_by:
        raise PermissionDeniedError(
            f"job {job_id} is {job.submitted_by}'s: only its submitter may open shells", received=principal.label
        )
    if not training_input_of(job).enable_web_access:
        raise InvalidInputError(
            f"job {job_id} does not allow shells",
            action="submit it with trainingInput.enableWebAccess, or --enable-web-access",
        )
    order = order_of(job)
    if job.state is not JobState.RUNNING or order is None:
        raise WrongStateError(f"job {job_id} is {job.state}: only a running job allows shells")
    names = [known.name for known in order.replicas]
    if replica not in names:
        raise NotFoundError(f"job {job_id} has no such replica", received=replica, allowed=names)
    return job


async def _serve(
    websocket: WebSocket, context: ServiceContext, job: JobRecord, *, replica: str, principal: Principal
) -> None:
    opened: AbstractShell | None = None
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            request = parse_shell_request(await websocket.receive_text())
        opened = await anyio.to_thread.run_sync(
            partial(_start, context, job, request, replica=replica, principal=principal)
        )
        await _relay(websocket, opened)
    except (WebSocketDisconnect, TimeoutError, KeyError):  # KeyError: bytes arrived instead of text
        pass
    except LockstepError as error:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            end = SHELL_END.dump_json(ShellEnd(problem=str(error)))
            await websocket.send_bytes(encode_frame(FrameKind.END, end))
    finally:
        if opened is not None:
            await anyio.to_thread.run_sync(opened.close)
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client closed it first
            await websocket.close()


def _start(
    context: ServiceContext, job: JobRecord, request: ShellRequest, *, replica: str, principal: Principal
) -> AbstractShell:
    opened = context.cluster.open_shell(f"{job.uid}-{job.attempt}", replica=replica)
    # Only the first word: arguments may contain private data.
    what = f"{request.command[0][:MAX_WORD_LENGTH]!r}" if request.command else "a shell"
    try:
        context.jobs.record_event(job.uid, kind="exec", detail=f"{principal.label} started {what} in {replica}")
        opened.send(encode_frame(FrameKind.START, SHELL_REQUEST.dump_json(request)))
    except DATABASE_FAULTS as error:  # a shell that cannot be recorded is not started
        opened.close()
        raise UnavailableError(f"the database cannot be used: {describe_fault(error)}", action="try again") from error
    except LockstepError:
        opened.close()
        raise
    return opened


async def _relay(websocket: WebSocket, opened: AbstractShell) -> None:
    """Forwards bytes in both directions until either side ends.

    Raises:
        WebSocketDisconnect: If the client has disconnected.
        LockstepError: If the engine does not answer.
    """
    problem: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def carry_input() -> None:
            with contextlib.suppress(WebSocketDisconnect, KeyError):
                while True:
                    data = await websocket.receive_bytes()
                    with contextlib.suppress(LockstepError):  # it has ended; its last output has yet to be received
                        await anyio.to_thread.run_sync(opened.send, data, limiter=limiter)
            await anyio.to_thread.run_sync(opened.close)

        limiter = anyio.CapacityLimiter(2)  # shells do not use the threads that other requests need
        tasks.start_soon(carry_input)
        receive = partial(opened.receive, timeout_s=RECEIVE_TIMEOUT_S)
        try:
            while (data := await anyio.to_thread.run_sync(receive, limiter=limiter)) is not None:
                if data:
                    await websocket.send_bytes(data)
        except (WebSocketDisconnect, LockstepError) as error:  # a task group would wrap it in an exception group
            problem = error
        tasks.cancel_scope.cancel()
    if problem is not None:
        raise problem
