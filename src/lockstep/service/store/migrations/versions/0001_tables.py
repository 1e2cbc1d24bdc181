"""The tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the tables."""
    _make_jobs()
    _make_replicas()
    _make_starts_and_events()
    _make_nodes_and_leases()
    _make_spending()
    _make_webhooks()
    _make_models()
    _make_versions()
    _make_keys_and_secrets()


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=280), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("is_submitted", sa.Boolean(), nullable=False),
        sa.Column("version_uid", sa.String(length=32), nullable=True),
        sa.Column("search_uid", sa.String(length=32), nullable=True),
        sa.Column("trial", sa.JSON(), nullable=True),
        sa.Column("training_input", sa.JSON(), nullable=False),
        sa.Column("prediction_input", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_wait_time_s", sa.Float(), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("start_time_s", sa.Float(), nullable=True),
        sa.Column("run_start_time_s", sa.Float(), nullable=True),
        sa.Column("end_time_s", sa.Float(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("num_restarts", sa.Integer(), nullable=False),
        sa.Column("candidate", sa.Integer(), nullable=False),
        sa.Column("provisioning_time_s", sa.Float(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("gang_order", sa.JSON(), nullable=True),
        sa.Column("gang_released", sa.Boolean(), nullable=False),
        sa.Column("moves", sa.JSON(), nullable=False),
        sa.Column("bill", sa.JSON(), nullable=True),
        sa.Column("outputs", sa.JSON(), nullable=False),
        sa.Column("submitted_by", sa.String(length=64), nullable=False),
        sa.Column("drain_time_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_jobs")),
        sa.UniqueConstraint("project", "job_id", name=op.f("uq_jobs_project_job_id")),
    )
    op.create_index(op.f("ix_jobs_gang_released"), "jobs", ["gang_released"], unique=False)
    op.create_index(op.f("ix_jobs_version_uid"), "jobs", ["version_uid"], unique=False)
    op.create_index(op.f("ix_jobs_search_uid"), "jobs", ["search_uid"], unique=False)
    op.create_index(
        op.f("ix_jobs_project_is_submitted_create_time_s_uid"),
        "jobs",
        ["project", "is_submitted", "create_time_s", "uid"],
        unique=False,
    )
    op.create_index(
        op.f("ix_jobs_state_project_is_submitted_create_time_s_uid"),
        "jobs",
        ["state", "project", "is_submitted", "create_time_s", "uid"],
        unique=False,
    )


def _make_replicas() -> None:
    op.create_table(
        "job_replicas",
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("machine_type", sa.String(length=64), nullable=False),
        sa.Column("accelerator_type", sa.String(length=64), nullable=True),
        sa.Column("accelerator_count", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("image_id", sa.Text(), nullable=False),
        sa.Column("placed_time_s", sa.Float(), nullable=True),
        sa.Column("started_time_s", sa.Float(), nullable=True),
        sa.Column("ready_time_s", sa.Float(), nullable=True),
        sa.Column("ended_time_s", sa.Float(), nullable=True),
        sa.Column("seen_time_s", sa.Float(), nullable=True),
        sa.Column("cpu_s", sa.Float(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=False),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("profile", sa.JSON(), nullable=True),
        sa.Column("earlier_busy_s", sa.Float(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("end", sa.JSON(), nullable=True),
        sa.Column("restarts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_job_replicas_job_uid_jobs")),
        sa.PrimaryKeyConstraint("job_uid", "number", name=op.f("pk_job_replicas")),
    )


def _make_starts_and_events() -> None:
    op.create_table(
        "job_attempts",
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("candidate", sa.Integer(), nullable=False),
        sa.Column("start_time_s", sa.Float(), nullable=True),
        sa.Column("end_time_s", sa.Float(), nullable=False),
        sa.Column("latest_end_time_s", sa.Float(), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("machines", sa.JSON(), nullable=False),
        sa.Column("moves", sa.JSON(), nullable=False),
        sa.Column("is_summed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_job_attempts_job_uid_jobs")),
        sa.PrimaryKeyConstraint("job_uid", "attempt", name=op.f("pk_job_attempts")),
    )
    op.create_index(
        op.f("ix_job_attempts_is_summed_end_time_s"), "job_attempts", ["is_summed", "end_time_s"], unique=False
    )
    op.create_index(op.f("ix_job_attempts_end_time_s"), "job_attempts", ["end_time_s"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("happened_time_s", sa.Float(), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_job_events_job_uid_jobs")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_job_events")),
    )
    op.create_index(op.f("ix_job_events_job_uid"), "job_events", ["job_uid"], unique=False)


def _make_nodes_and_leases() -> None:
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("slot", sa.String(length=64), nullable=False),
        sa.Column("node_type", sa.String(length=64), nullable=False),
        sa.Column("asked_for", sa.String(length=32), nullable=True),
        sa.Column("asked_time_s", sa.Float(), nullable=False),
        sa.Column("up_time_s", sa.Float(), nullable=True),
        sa.Column("ready_time_s", sa.Float(), nullable=True),
        sa.Column("idle_time_s", sa.Float(), nullable=True),
        sa.Column("released_time_s", sa.Float(), nullable=True),
        sa.Column("down_time_s", sa.Float(), nullable=True),
        sa.Column("failed_time_s", sa.Float(), nullable=True),
        sa.Column("seen_time_s", sa.Float(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("usd_per_hour", sa.String(length=32), nullable=True),
        sa.Column("price_source", sa.Text(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("is_summed", sa.Boolean(), nullable=False),
        sa.Column("summed_until_us", sa.BigInteger(), nullable=True),
        sa.Column("summed_last_job", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["asked_for"], ["jobs.uid"], name=op.f("fk_nodes_asked_for_jobs")),
        sa.ForeignKeyConstraint(["summed_last_job"], ["jobs.uid"], name=op.f("fk_nodes_summed_last_job_jobs")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_nodes")),
    )
    op.create_index(op.f("ix_nodes_is_summed"), "nodes", ["is_summed"], unique=False)
    op.create_index(op.f("ix_nodes_down_time_s"), "nodes", ["down_time_s"], unique=False)
    op.create_index(op.f("ix_nodes_failed_time_s"), "nodes", ["failed_time_s"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=32), nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("expire_time_s", sa.Float(), nullable=True),
        sa.Column("owner", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )


def _make_spending() -> None:
    op.create_table(
        "node_uses",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("machine", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=32), nullable=False),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.uid"], name=op.f("fk_node_uses_job_jobs")),
        sa.ForeignKeyConstraint(["machine"], ["nodes.name"], name=op.f("fk_node_uses_machine_nodes")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_node_uses")),
    )
    op.create_index(op.f("ix_node_uses_machine"), "node_uses", ["machine"], unique=False)
    op.create_table(
        "spent_days",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("owed_usd", sa.Text(), nullable=False),
        sa.Column("simulated_usd", sa.Text(), nullable=False),
        sa.Column("unpriced", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("project", "day", name=op.f("pk_spent_days")),
    )
    op.create_index(op.f("ix_spent_days_day"), "spent_days", ["day"], unique=False)
    op.create_table(
        "budget_alerts",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("period", sa.String(length=10), nullable=False),
        sa.Column("share", sa.String(length=16), nullable=False),
        sa.Column("limit_usd", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_budget_alerts")),
        sa.UniqueConstraint(
            "project", "period", "share", "limit_usd", name=op.f("uq_budget_alerts_project_period_share_limit_usd")
        ),
    )
    op.create_table(
        "stored_sizes",
        sa.Column("job_uid", sa.String(length=32), nullable=False),
        sa.Column("start_time_s", sa.Float(), nullable=False),
        sa.Column("end_time_s", sa.Float(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_stored_sizes_job_uid_jobs")),
        sa.PrimaryKeyConstraint("job_uid", "start_time_s", name=op.f("pk_stored_sizes")),
    )


def _make_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("feed", sa.String(length=8), nullable=False),
        sa.Column("job_uid", sa.String(length=32), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("display_url", sa.Text(), nullable=True),
        sa.Column("secret", sa.String(length=64), nullable=True),
        sa.Column("states", sa.JSON(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("num_dropped", sa.Integer(), nullable=False),
        sa.Column("next_time_s", sa.Float(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("since_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job_uid"], ["jobs.uid"], name=op.f("fk_webhooks_job_uid_jobs")),
        sa.PrimaryKeyConstraint("name", "feed", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_job_uid"), "webhooks", ["job_uid"], unique=False)
    op.create_index(op.f("ix_webhooks_next_time_s"), "webhooks", ["next_time_s"], unique=False)


def _make_models() -> None:
    op.create_table(
        "models",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("traffic", sa.JSON(), nullable=False),
        sa.Column("max_versions", sa.Integer(), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_models")),
    )
    op.create_table(
        "traffic_changes",
        sa.Column("seq", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.Column("changed_by", sa.String(length=64), nullable=False),
        sa.Column("traffic", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_traffic_changes")),
    )
    op.create_index(
        op.f("ix_traffic_changes_project_model_seq"), "traffic_changes", ["project", "model", "seq"], unique=False
    )
    op.create_table(
        "uploaded_models",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("region", sa.String(length=64), nullable=False),
        sa.Column("artifact_uri", sa.Text(), nullable=False),
        sa.Column("container_spec", sa.JSON(), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("update_time_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_uploaded_models")),
    )


def _make_versions() -> None:
    op.create_table(
        "versions",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("deployment_uri", sa.Text(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("package_uris", sa.JSON(), nullable=False),
        sa.Column("python_module", sa.Text(), nullable=True),
        sa.Column("prediction_class", sa.Text(), nullable=True),
        sa.Column("container", sa.JSON(), nullable=True),
        sa.Column("python_version", sa.String(length=16), nullable=True),
        sa.Column("framework", sa.String(length=32), nullable=True),
        sa.Column("machine_type", sa.String(length=64), nullable=False),
        sa.Column("accelerator", sa.JSON(), nullable=True),
        sa.Column("region", sa.String(length=64), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("num_servers", sa.Integer(), nullable=False),
        sa.Column("scaling", sa.JSON(), nullable=True),
        sa.Column("num_failures", sa.Integer(), nullable=False),
        sa.Column("last_failure_time_s", sa.Float(), nullable=True),
        sa.Column("last_use_time_s", sa.Float(), nullable=True),
        sa.Column("update_operation", sa.String(length=64), nullable=True),
        sa.Column("request_logging", sa.JSON(), nullable=True),
        sa.Column("batching", sa.JSON(), nullable=True),
        sa.Column("uploaded_model", sa.String(length=128), nullable=True),
        sa.Column("split_when_ready", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("project", "model", "name", name=op.f("pk_versions")),
        sa.UniqueConstraint("uid", name=op.f("uq_versions_uid")),
    )
    op.create_index(op.f("ix_versions_state"), "versions", ["state"], unique=False)
    op.create_table(
        "demands",
        sa.Column("version_uid", sa.String(length=32), nullable=False),
        sa.Column("service", sa.String(length=32), nullable=False),
        sa.Column("num_waiting", sa.Integer(), nullable=False),
        sa.Column("time_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("version_uid", "service", name=op.f("pk_demands")),
    )
    op.create_table(
        "operations",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("version", sa.String(length=128), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("end_time_s", sa.Float(), nullable=True),
        sa.Column("error_code", sa.Integer(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", "project", name=op.f("pk_operations")),
    )


def _make_keys_and_secrets() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("expire_time_s", sa.Float(), nullable=True),
        sa.Column("last_used_time_s", sa.Float(), nullable=True),
        sa.Column("revoke_time_s", sa.Float(), nullable=True),
        sa.Column("revoked_by", sa.String(length=64), nullable=True),
        sa.Column("model", sa.String(length=128), nullable=True),
        sa.Column("model_version", sa.String(length=128), nullable=True),
        sa.Column("requests_per_second", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("expire_time_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_sessions_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expire_time_s"), "sessions", ["expire_time_s"])
    op.create_table(
        "secrets",
        sa.Column("project", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("create_time_s", sa.Float(), nullable=False),
        sa.Column("update_time_s", sa.Float(), nullable=False),
        sa.Column("updated_by", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("project", "name", name=op.f("pk_secrets")),
    )
