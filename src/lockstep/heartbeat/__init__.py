"""Heartbeats of a program, sent to a socket that an environment variable names, and requests for profiles of it."""

from lockstep.heartbeat.beats import (
    EXIT_TIMEOUT_S,
    HEARTBEAT_VARIABLE,
    MAX_BEAT_BYTES,
    MAX_METRICS,
    MAX_NAME_LENGTH,
    SEND_INTERVAL_S,
    Beat,
    HeartbeatSender,
    current_sender,
    observe_progress,
    report_progress,
)
from lockstep.heartbeat.profiles import (
    MAX_PROFILE_STEPS,
    ProfileReport,
    ProfileRequest,
    ProfileRequests,
    ProfileState,
    make_request_file,
    write_request,
)

__all__ = [
    "EXIT_TIMEOUT_S",
    "HEARTBEAT_VARIABLE",
    "MAX_BEAT_BYTES",
    "MAX_METRICS",
    "MAX_NAME_LENGTH",
    "MAX_PROFILE_STEPS",
    "SEND_INTERVAL_S",
    "Beat",
    "HeartbeatSender",
    "ProfileReport",
    "ProfileRequest",
    "ProfileRequests",
    "ProfileState",
    "current_sender",
    "make_request_file",
    "observe_progress",
    "report_progress",
    "write_request",
]
