"""The tables. A change here needs a migration beside it; a test compares the two."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from lockstep.jobs.billing.bills import BILL
from lockstep.jobs.running.order_parts import FILES
from lockstep.service.store.control.moves import MOVES
from lockstep.service.store.control.trials import TRIAL
from lockstep.service.store.json_columns import JsonOf
from lockstep.service.store.prediction.containers import VERSION_CONTAINER
from lockstep.service.store.prediction.policies import BATCHING, REQUEST_LOGGING, SCALING
from lockstep.service.store.prediction.records import ACCELERATOR
from lockstep.service.store.prediction.traffic import TRAFFIC

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _partial_index(name: str, *columns: str, where: str) -> Index:
    """Returns an index of the rows for which a condition holds: of a long queue, only the few that are looked for."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


JOBS = Table(
    "jobs",
    METADATA,
    Column("uid", String(32), primary_key=True),
    Column("project", String(128), nullable=False),
    Column("job_id", String(280), nullable=False),
    Column("kind", String(16), nullable=False, default="training"),
    Column("is_submitted", Boolean, nullable=False, default=True),
    Column("version_uid", String(32), index=True),
    Column("search_uid", String(32), index=True),
    Column("trial", JsonOf(TRIAL)),
    Column("training_input", JSON, nullable=False),
    Column("prediction_input", JSON(none_as_null=True)),
    Column("files", JsonOf(FILES), nullable=False, default=()),
    Column("labels", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("version", Integer, nullable=False, default=1),
    Column("revision", Integer, nullable=False, default=0),
    Column("attempt", Integer, nullable=False, default=0),
    Column("priority", Integer, nullable=False),
    Column("max_wait_time_s", Float),
    Column("create_time_s", Float, nullable=False),
    Column("start_time_s", Float),
    Column("run_start_time_s", Float),
    Column("end_time_s", Float),
    Column("end_reason", Text),
    Column("num_restarts", Integer, nullable=False, default=0),
    Column("candidate", Integer, nullable=False, default=0),
    Column("provisioning_time_s", Float),
    Column("error_message", Text),
    Column("simulated", Boolean, nullable=False),
    Column("gang_order", JSON),
    Column("gang_released", Boolean, nullable=False, index=True, default=True),
    Column("moves", JsonOf(MOVES), nullable=False, default=()),
    Column("bill", JsonOf(BILL)),
    Column("outputs", JSON, nullable=False),
    Column("submitted_by", String(64), nullable=False),
    Column("drain_time_s", Float),
    UniqueConstraint("project", "job_id"),
    Index(None, "project", "is_submitted", "create_time_s", "uid"),
    Index(None, "state", "project", "is_submitted", "create_time_s", "uid"),
    Index(None, "kind", "state"),
    _partial_index("ix_jobs_limited_wait", "state", "max_wait_time_s", where="max_wait_time_s IS NOT NULL"),
    _partial_index(
        "ix_jobs_awaiting_machines", "state", "provisioning_time_s", where="provisioning_time_s IS NOT NULL"
    ),
)

JOB_REPLICAS = Table(
    "job_replicas",
    METADATA,
    Column("job_uid", String(32), ForeignKey("jobs.uid"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("machine_type", String(64), nullable=False),
    Column("accelerator_type", String(64)),
    Column("accelerator_count", Integer, nullable=False),
    Column("phase", String(16), nullable=False),
    Column("host", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("pid", Integer),
    Column("image_id", Text, nullable=False),
    Column("placed_time_s", Float),
    Column("started_time_s", Float),
    Column("ready_time_s", Float),
    Column("ended_time_s", Float),
    Column("seen_time_s", Float),
    Column("cpu_s", Float, nullable=False),
    Column("wall_s", Float, nullable=False),
    Column("peak_memory_bytes", BigInteger, nullable=False),
    Column("progress", JSON),
    Column("profile", JSON),
    Column("earlier_busy_s", Float, nullable=False),
    Column("metrics", JSON, nullable=False),
    Column("end", JSON),
    Column("restarts", JSON, nullable=False),
)

JOB_ATTEMPTS = Table(
    "job_attempts",
    METADATA,
    Column("job_uid", String(32), ForeignKey("jobs.uid"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("candidate", Integer, nullable=False),
    Column("start_time_s", Float),
    Column("end_time_s", Float, nullable=False, index=True),
    Column("latest_end_time_s", Float),
    Column("end_reason", Text),
    Column("machines", JSON, nullable=False),
    Column("moves", JsonOf(MOVES), nullable=False, default=()),
    Column("is_summed", Boolean, nullable=False, default=False),
    Index(None, "is_summed", "end_time_s"),
)

JOB_EVENTS = Table(
    "job_events",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("job_uid", String(32), ForeignKey("jobs.uid"), nullable=False, index=True),
    Column("time_s", Float, nullable=False),
    Column("happened_time_s", Float),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("detail", Text, nullable=False),
)

NODES = Table(
    "nodes",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("slot", String(64), nullable=False),
    Column("node_type", String(64), nullable=False),
    Column("asked_for", String(32), ForeignKey("jobs.uid")),
    Column("asked_time_s", Float, nullable=False),
    Column("up_time_s", Float),
    Column("ready_time_s", Float),
    Column("idle_time_s", Float),
    Column("released_time_s", Float),
    Column("down_time_s", Float, index=True),
    Column("failed_time_s", Float, index=True),
    Column("seen_time_s", Float),
    Column("reason", Text, nullable=False),
    Column("machine", Text, nullable=False),
    Column("usd_per_hour", String(32)),
    Column("price_source", Text, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("is_summed", Boolean, nullable=False, default=False, index=True),
    Column("summed_until_us", BigInteger),
    Column("summed_last_job", String(32), ForeignKey("jobs.uid")),
)

NODE_USES = Table(
    "node_uses",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("machine", String(64), ForeignKey("nodes.name"), nullable=False, index=True),
    Column("job", String(32), ForeignKey("jobs.uid"), nullable=False),
    Column("vcpus", Integer, nullable=False),
    Column("start_us", BigInteger, nullable=False),
    Column("end_us", BigInteger, nullable=False),
)

MODELS = Table(
    "models",
    METADATA,
    Column("project", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("description", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("region", String(64)),
    Column("revision", Integer, nullable=False, default=0),
    Column("traffic", JsonOf(TRAFFIC), nullable=False, default=()),
    Column("max_versions", Integer),
    Column("create_time_s", Float, nullable=False),
)

TRAFFIC_CHANGES = Table(
    "traffic_changes",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("project", String(128), nullable=False),
    Column("model", String(128), nullable=False),
    Column("time_s", Float, nullable=False),
    Column("changed_by", String(64), nullable=False),
    Column("traffic", JsonOf(TRAFFIC), nullable=False),
    Index(None, "project", "model", "seq"),
)

VERSIONS = Table(
    "versions",
    METADATA,
    Column("project", String(128), primary_key=True),
    Column("model", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("uid", String(32), nullable=False, unique=True),
    Column("description", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("deployment_uri", Text, nullable=False),
    Column("files", JsonOf(FILES), nullable=False, default=()),
    Column("package_uris", JSON, nullable=False),
    Column("python_module", Text),
    Column("prediction_class", Text),
    Column("container", JsonOf(VERSION_CONTAINER)),
    Column("python_version", String(16)),
    Column("framework", String(32)),
    Column("machine_type", String(64), nullable=False),
    Column("accelerator", JsonOf(ACCELERATOR)),
    Column("region", String(64)),
    Column("revision", Integer, nullable=False, default=0),
    Column("state", String(16), nullable=False, index=True),
    Column("error_message", Text),
    Column("create_time_s", Float, nullable=False),
    Column("num_servers", Integer, nullable=False),
    Column("scaling", JsonOf(SCALING)),
    Column("num_failures", Integer, nullable=False, default=0),
    Column("last_failure_time_s", Float),
    Column("last_use_time_s", Float),
    Column("update_operation", String(64)),
    Column("request_logging", JsonOf(REQUEST_LOGGING)),
    Column("batching", JsonOf(BATCHING)),
    Column("uploaded_model", String(128)),
    Column("split_when_ready", JSON(none_as_null=True)),
)

UPLOADED_MODELS = Table(
    "uploaded_models",
    METADATA,
    Column("project", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("description", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("region", String(64), nullable=False),
    Column("artifact_uri", Text, nullable=False),
    Column("container_spec", JSON(none_as_null=True)),
    Column("create_time_s", Float, nullable=False),
    Column("update_time_s", Float, nullable=False),
)

DEMANDS = Table(
    "demands",
    METADATA,
    Column("version_uid", String(32), primary_key=True),
    Column("service", String(32), primary_key=True),
    Column("num_waiting", Integer, nullable=False),
    Column("time_s", Float, nullable=False),
)

OPERATIONS = Table(
    "operations",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("project", String(128), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("model", String(128), nullable=False),
    Column("version", String(128)),
    Column("create_time_s", Float, nullable=False),
    Column("end_time_s", Float),
    Column("error_code", Integer),
    Column("error_message", Text),
)

API_KEYS = Table(
    "api_keys",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("label", String(64), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("project", String(128), nullable=False),
    Column("created_by", String(64), nullable=False),
    Column("create_time_s", Float, nullable=False),
    Column("expire_time_s", Float),
    Column("last_used_time_s", Float),
    Column("revoke_time_s", Float),
    Column("revoked_by", String(64)),
    Column("model", String(128)),
    Column("model_version", String(128)),
    Column("requests_per_second", Float),
)

SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("key_id", String(32), ForeignKey("api_keys.id"), nullable=True),
    Column("create_time_s", Float, nullable=False),
    Column("expire_time_s", Float, nullable=False, index=True),
)

SECRETS = Table(
    "secrets",
    METADATA,
    Column("project", String(128), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("create_time_s", Float, nullable=False),
    Column("update_time_s", Float, nullable=False),
    Column("updated_by", String(64), nullable=False),
)

WEBHOOKS = Table(
    "webhooks",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("feed", String(8), primary_key=True),
    Column("job_uid", String(32), ForeignKey("jobs.uid"), index=True),
    Column("sealed", LargeBinary),
    Column("display_url", Text),
    Column("secret", String(64)),
    Column("states", JSON, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("event_seq", Integer, nullable=False, server_default="0"),
    Column("num_failures", Integer, nullable=False),
    Column("num_dropped", Integer, nullable=False),
    Column("next_time_s", Float, index=True),
    Column("problem", Text),
    Column("since_s", Float),
    _partial_index("ix_webhooks_behind", "next_time_s", where="event_seq > seq"),
)

WEBHOOK_DELIVERIES = Table(
    "webhook_deliveries",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("webhook", String(64), nullable=False),
    Column("message_id", String(128), nullable=False),
    Column("project", String(128), nullable=False),
    Column("job", String(280), nullable=False),
    Column("event", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("time_s", Float, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("status", Integer),
    Column("problem", Text),
    Column("duration_s", Float, nullable=False),
    Index(None, "webhook", "seq"),
)

PROJECT_CHANGES = Table(
    "project_changes",
    METADATA,
    Column("project", String(128), primary_key=True),
    Column("number", Integer, nullable=False),
)

SPENT_DAYS = Table(
    "spent_days",
    METADATA,
    Column("project", String(128), primary_key=True),
    Column("day", String(10), primary_key=True, index=True),
    Column("owed_usd", Text, nullable=False),
    Column("simulated_usd", Text, nullable=False),
    Column("unpriced", JSON, nullable=False),
)

BUDGET_ALERTS = Table(
    "budget_alerts",
    METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("project", String(128), nullable=False),
    Column("period", String(10), nullable=False),
    Column("share", String(16), nullable=False),
    Column("limit_usd", String(32), nullable=False),
    Column("text", Text, nullable=False),
    Column("time_s", Float, nullable=False),
    UniqueConstraint("project", "period", "share", "limit_usd"),
)

STORED_SIZES = Table(
    "stored_sizes",
    METADATA,
    Column("job_uid", String(32), ForeignKey("jobs.uid"), primary_key=True),
    Column("start_time_s", Float, primary_key=True),
    Column("end_time_s", Float),
    Column("size_bytes", BigInteger, nullable=False),
)

LEASES = Table(
    "leases",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("holder", String(32), nullable=False),
    Column("home", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("expire_time_s", Float),
    Column("owner", String(32)),
)
