"""Decides which queued jobs start now and on which nodes, and explains what the others wait for."""

from lockstep.jobs.scheduling.decisions import Decisions, Refusal, Start, Waiting
from lockstep.jobs.scheduling.demands import Demand, NodeSpec, QueuedJob, Resources
from lockstep.jobs.scheduling.foreign_usage import ForeignUsage, describe_foreign_usage
from lockstep.jobs.scheduling.quotas import ProjectUse, Quota, parse_quotas
from lockstep.jobs.scheduling.scheduler import Scheduler

__all__ = [
    "Decisions",
    "Demand",
    "ForeignUsage",
    "NodeSpec",
    "ProjectUse",
    "QueuedJob",
    "Quota",
    "Refusal",
    "Resources",
    "Scheduler",
    "Start",
    "Waiting",
    "describe_foreign_usage",
    "parse_quotas",
]
