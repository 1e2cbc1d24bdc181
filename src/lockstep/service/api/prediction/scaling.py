"""``autoScaling`` and ``manualScaling`` of a version, as requests give them and responses return them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, final

from pydantic import AfterValidator, Field

from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.input.gangs import Gang
from lockstep.jobs.parsing.fields import AbstractDocument, Double, Duration, Int32, duration_s, rule_error
from lockstep.service.api.forms import AutoScalingForm, OwnAutoScalingForm
from lockstep.service.control.schedule import MAX_SERVERS
from lockstep.service.store import ScalingPolicy

MAX_REQUESTS_PER_SERVER: Final = 256
"""A prediction server rejects requests beyond about this number."""
MAX_WAKE_TIMEOUT_S: Final = 600.0
DEFAULT: Final = ScalingPolicy(min_servers=0, max_servers=1)


@final
class MetricName(StrEnum):
    """The contract's metrics."""

    CPU_USAGE = "CPU_USAGE"
    GPU_DUTY_CYCLE = "GPU_DUTY_CYCLE"


@final
class MetricSpec(AbstractDocument):
    """``GoogleCloudMlV1__MetricSpec``.

    Attributes:
        name: the metric.
        target: the value that each server should have, in percent.
    """

    name: MetricName
    target: Int32 = Field(default=60, ge=1, le=100)


@final
class AutoScaling(AbstractDocument):
    """``GoogleCloudMlV1__AutoScaling``.

    Attributes:
        min_nodes: the minimum number of prediction servers.
        max_nodes: the maximum number of prediction servers.
        metrics: the metrics that the number follows, in addition to the open requests.
    """

    min_nodes: Int32 = Field(default=1, ge=0, le=MAX_SERVERS)
    max_nodes: Int32 = Field(default=MAX_SERVERS, ge=1, le=MAX_SERVERS)
    metrics: tuple[MetricSpec, ...] = Field(default=(MetricSpec(name=MetricName.CPU_USAGE),), max_length=2)


def _check_positive(value: float) -> float:
    if not 0 < value <= MAX_REQUESTS_PER_SERVER:
        raise rule_error(allowed=f"a number above 0, at most {MAX_REQUESTS_PER_SERVER}")
    return value


def _check_wake_timeout(value: str) -> str:
    if duration_s(value) > MAX_WAKE_TIMEOUT_S:
        raise rule_error(allowed=f'"0s" to "{MAX_WAKE_TIMEOUT_S:.0f}s"')
    return value


@final
class OwnAutoScaling(AbstractDocument):
    """Lockstep's own fields of automatic scaling.

    Attributes:
        requests_per_server: how many open requests each server should have.
        idle_timeout: how long a version has had no request when its last server is ended.
        wake_timeout: how long a request to a version without a server is held.
        stabilization_window: the number of servers decreases to the highest number that was needed in this time.
    """

    requests_per_server: Annotated[Double, AfterValidator(_check_positive)] = DEFAULT.requests_per_server
    idle_timeout: Duration = f"{DEFAULT.idle_timeout_s:.0f}s"
    wake_timeout: Annotated[Duration, AfterValidator(_check_wake_timeout)] = f"{DEFAULT.wake_timeout_s:.0f}s"
    stabilization_window: Duration = f"{DEFAULT.stabilization_window_s:.0f}s"


def scaling_policy(
    auto: AutoScaling | None, *, own: OwnAutoScaling | None, has_manual: bool, gang: Gang, simulates_gpus: bool
) -> ScalingPolicy | None:
    """Returns how the number of a version's servers follows its load; None if it does not.

    Args:
        auto: the request's ``autoScaling``; None if it has none.
        own: the request's ``lockstep.autoScaling``; None if it has none.
        has_manual: whether the request has ``manualScaling``.
        gang: the machine of each server.
        simulates_gpus: whether the GPUs of this machine are simulated, so that nothing is measured of them.

    Raises:
        ConfigError: If the fields contradict each other.
        InvalidInputError: If a metric is not measured on this machine.
    """
    if auto is None:
        if own is not None:
            raise ConfigError("lockstep.autoScaling is only for versions with autoScaling", action="add autoScaling")
        return None
    if has_manual:
        raise ConfigError("a version has either autoScaling or manualScaling, not both", action="remove one of them")
    if auto.max_nodes < auto.min_nodes:
        raise ConfigError(
            "autoScaling.maxNodes", received=auto.max_nodes, allowed=f"minNodes, {auto.min_nodes}, to {MAX_SERVERS}"
        )
    targets: dict[MetricName, int] = {}
    for index, metric in enumerate(auto.metrics):
        if metric.name in targets:
            raise ConfigError(f"autoScaling.metrics.{index}.name: {metric.name} is there twice")
        targets[metric.name] = metric.target
    if MetricName.GPU_DUTY_CYCLE in targets:
        _check_gpus(gang, simulated=simulates_gpus)
    own = own or OwnAutoScaling()
    return ScalingPolicy(
        min_servers=auto.min_nodes,
        max_servers=auto.max_nodes,
        cpu_percent=targets.get(MetricName.CPU_USAGE),
        gpu_percent=targets.get(MetricName.GPU_DUTY_CYCLE),
        requests_per_server=own.requests_per_server,
        idle_timeout_s=duration_s(own.idle_timeout),
        wake_timeout_s=duration_s(own.wake_timeout),
        stabilization_window_s=duration_s(own.stabilization_window),
    )


def _check_gpus(gang: Gang, *, simulated: bool) -> None:
    accelerator = gang.replicas[0].accelerator
    if accelerator is None or not accelerator.type.startswith("NVIDIA_"):
        reason = f"{gang.replicas[0].machine_type} has no GPU"
    elif simulated:
        reason = "the GPUs of this service are simulated, so nothing is measured of them"
    else:
        return
    raise InvalidInputError(
        f"autoScaling.metrics: {MetricName.GPU_DUTY_CYCLE} is not known: {reason}",
        allowed=[MetricName.CPU_USAGE.value],
    )


def auto_scaling_form(policy: ScalingPolicy) -> AutoScalingForm:
    """Returns a policy as ``GoogleCloudMlV1__AutoScaling``."""
    percents = {MetricName.CPU_USAGE: policy.cpu_percent, MetricName.GPU_DUTY_CYCLE: policy.gpu_percent}
    return {
        "minNodes": policy.min_servers,
        "maxNodes": policy.max_servers,
        "metrics": [
            {"name": name.value, "target": percent} for name, percent in percents.items() if percent is not None
        ],
    }


def own_auto_scaling_form(policy: ScalingPolicy) -> OwnAutoScalingForm:
    """Returns the parts of a policy that are not in the contract."""
    return {
        "requestsPerServer": policy.requests_per_server,
        "idleTimeout": f"{policy.idle_timeout_s:g}s",
        "wakeTimeout": f"{policy.wake_timeout_s:g}s",
        "stabilizationWindow": f"{policy.stabilization_window_s:g}s",
    }
