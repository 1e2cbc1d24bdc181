"""The service's database: jobs, their events, nodes, keys, secrets, webhooks, models and versions."""

from lockstep.service.store.billing.spending import (
    EndedAttempt,
    SpendingSnapshot,
    SpendingStore,
    SummedNode,
    UnsummedNode,
)
from lockstep.service.store.billing.storage_sizes import KeepingJob, StoredSizeStore
from lockstep.service.store.control.job_rows import GangPart, RanJob
from lockstep.service.store.control.jobs import JobStore
from lockstep.service.store.control.lease import Holder, Lease, LeaseLostError, holder_of
from lockstep.service.store.control.listing import NEWEST_FIRST, ORDER_KEYS, JobOrder
from lockstep.service.store.control.moves import Move, machine_stays
from lockstep.service.store.control.nodes import NodeStore
from lockstep.service.store.control.records import AttemptRecord, EventNote, JobKind, JobRecord, RecordedEvent
from lockstep.service.store.control.replicas import ReplicaChange, ReplicaRecord, changes_of
from lockstep.service.store.control.searches import SearchStore, trial_job_id
from lockstep.service.store.control.trials import MeasuredPoint, TrialRecord
from lockstep.service.store.database import connect_database, excluding, open_database
from lockstep.service.store.faults import DATABASE_FAULTS, describe_fault
from lockstep.service.store.notifications.deliveries import NUM_DELIVERIES_MAX, Delivery
from lockstep.service.store.notifications.webhooks import Feed, NewWebhook, WebhookRecord, WebhookStore
from lockstep.service.store.postgres import parse_database_url, take_password
from lockstep.service.store.prediction.containers import VersionContainer
from lockstep.service.store.prediction.demands import DemandStore
from lockstep.service.store.prediction.models import ModelStore
from lockstep.service.store.prediction.policies import Batching, RequestLogging, ScalingPolicy
from lockstep.service.store.prediction.records import (
    ModelChanges,
    ModelRecord,
    OperationCode,
    OperationRecord,
    VersionRecord,
    VersionState,
)
from lockstep.service.store.prediction.traffic import WHOLE, Share, Traffic, TrafficChange, split_of
from lockstep.service.store.prediction.uploads import UploadedModelRecord, UploadStore
from lockstep.service.store.security.job_secrets import SecretRecord, SecretStore
from lockstep.service.store.security.keys import KeyRecord, KeyStore
from lockstep.service.store.security.sessions import SessionRecord, SessionStore

__all__ = [
    "DATABASE_FAULTS",
    "NEWEST_FIRST",
    "NUM_DELIVERIES_MAX",
    "ORDER_KEYS",
    "WHOLE",
    "AttemptRecord",
    "Batching",
    "Delivery",
    "DemandStore",
    "EndedAttempt",
    "EventNote",
    "Feed",
    "GangPart",
    "Holder",
    "JobKind",
    "JobOrder",
    "JobRecord",
    "JobStore",
    "KeepingJob",
    "KeyRecord",
    "KeyStore",
    "Lease",
    "LeaseLostError",
    "MeasuredPoint",
    "ModelChanges",
    "ModelRecord",
    "ModelStore",
    "Move",
    "NewWebhook",
    "NodeStore",
    "OperationCode",
    "OperationRecord",
    "RanJob",
    "RecordedEvent",
    "ReplicaChange",
    "ReplicaRecord",
    "RequestLogging",
    "ScalingPolicy",
    "SearchStore",
    "SecretRecord",
    "SecretStore",
    "SessionRecord",
    "SessionStore",
    "Share",
    "SpendingSnapshot",
    "SpendingStore",
    "StoredSizeStore",
    "SummedNode",
    "Traffic",
    "TrafficChange",
    "TrialRecord",
    "UnsummedNode",
    "UploadStore",
    "UploadedModelRecord",
    "VersionContainer",
    "VersionRecord",
    "VersionState",
    "WebhookRecord",
    "WebhookStore",
    "changes_of",
    "connect_database",
    "describe_fault",
    "excluding",
    "holder_of",
    "machine_stays",
    "open_database",
    "parse_database_url",
    "split_of",
    "take_password",
    "trial_job_id",
]
