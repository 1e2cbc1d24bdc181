"""Containers on this machine: the container engine (podman or docker), its images, and jobs' containers."""

from lockstep.containers.commands import ContainerSpec, Mount, build, create, push
from lockstep.containers.engine import ENGINE_VARIABLE, ContainerEngine, EngineAnswer, EngineKind, open_engine
from lockstep.containers.images import ensure_image, image_id, pull_error
from lockstep.containers.labels import JobLabels, current_runner
from lockstep.containers.reaper import reap, reap_dead, reap_spool
from lockstep.containers.references import check_reference, registry_of
from lockstep.containers.states import ContainerState, inspect

__all__ = [
    "ENGINE_VARIABLE",
    "ContainerEngine",
    "ContainerSpec",
    "ContainerState",
    "EngineAnswer",
    "EngineKind",
    "JobLabels",
    "Mount",
    "build",
    "check_reference",
    "create",
    "current_runner",
    "ensure_image",
    "image_id",
    "inspect",
    "open_engine",
    "pull_error",
    "push",
    "reap",
    "reap_dead",
    "reap_spool",
    "registry_of",
]
