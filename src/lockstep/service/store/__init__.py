"""The service's database: the truth about jobs, models and what happened to them."""

from lockstep.service.store.database import connect_database, open_database
from lockstep.service.store.job_secrets import SecretRecord, SecretStore
from lockstep.service.store.jobs import AttemptRecord, JobRecord, JobStore, RecordedEvent
from lockstep.service.store.keys import KeyRecord, KeyStore
from lockstep.service.store.models import ModelRecord, ModelStore, OperationRecord, VersionRecord, VersionState

__all__ = [
    "AttemptRecord",
    "JobRecord",
    "JobStore",
    "KeyRecord",
    "KeyStore",
    "ModelRecord",
    "ModelStore",
    "OperationRecord",
    "RecordedEvent",
    "SecretRecord",
    "SecretStore",
    "VersionRecord",
    "VersionState",
    "connect_database",
    "open_database",
]
