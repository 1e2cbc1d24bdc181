"""Which queued jobs start now, on which nodes, and what the others wait for."""

from lockstep.jobs.scheduling.decisions import Decisions, Refusal, Start, Waiting
from lockstep.jobs.scheduling.demands import Demand, NodeSpec, QueuedJob
from lockstep.jobs.scheduling.quotas import Quota, parse_quotas
from lockstep.jobs.scheduling.scheduler import Scheduler

__all__ = [
    "Decisions",
    "Demand",
    "NodeSpec",
    "QueuedJob",
    "Quota",
    "Refusal",
    "Scheduler",
    "Start",
    "Waiting",
    "parse_quotas",
]
