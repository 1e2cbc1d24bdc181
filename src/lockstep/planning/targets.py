"""The targets of a plan, by name: ``v5e:2x4`` is eight TPU v5e chips, ``cpu:4`` is four virtual CPU devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Self, final

from lockstep.errors import InvalidInputError
from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.planning.chips import CHIPS, Chip
from lockstep.topology import PLACE_VARIABLES, Topology, virtual_devices_env

CPU: Final = "cpu"
MAX_CPUS: Final = 64

_LIBTPU_ENV: Final = {
    # libtpu reads these if there is no TPU and no metadata server.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v4-8",
    # libtpu locks the TPU so that only one process uses it; compiling does not need the lock.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}

_TPU_PLACE: Final = frozenset({"TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"})


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """A set of devices to plan for, which need not be present.

    Attributes:
        name: the name of the target, such as "v5e:2x4".
        chip: the kind of chip; None for virtual CPU devices, which have no published figures.
        shape: the number of chips along each dimension of the interconnect.
    """

    name: str
    chip: Chip | None
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parses a target's name.

        Args:
            name: the name: ``GENERATION:SHAPE``, such as ``v5e:2x4``, or ``cpu:COUNT``.

        Raises:
            InvalidInputError: there is no such chip, or no slice of that shape.
        """
        generation, _, shape_text = name.strip().lower().partition(":")
        if generation == CPU:
            if not (shape_text.isdecimal() and 1 <= int(shape_text) <= MAX_CPUS):
                raise InvalidInputError(
                    "--on: a number of CPU devices", received=name, allowed=f"cpu:1 to cpu:{MAX_CPUS}"
                )
            return cls(name=f"{CPU}:{int(shape_text)}", chip=None, shape=(int(shape_text),))
        chip = CHIPS.get(generation)
        if chip is None:
            raise InvalidInputError(
                "--on: there is no such chip to plan for",
                received=name,
                allowed=[*(f"{known}:SHAPE" for known in CHIPS), "cpu:COUNT"],
                action="for example --on v5e:2x4",
            )
        shape = tuple(map(int, shape_text.split("x"))) if re.fullmatch(r"\d{1,4}(x\d{1,4})*", shape_text) else ()
        if shape not in chip.shapes:
            raise InvalidInputError(
                f"--on: there is no slice of {generation} of this shape",
                received=shape_text,
                allowed=["x".join(map(str, known)) for known in chip.shapes],
                action=f"for example --on {generation}:{'x'.join(map(str, chip.shapes[2]))}",
            )
        return cls(name=f"{generation}:{shape_text}", chip=chip, shape=shape)

    @property
    def num_chips(self) -> int:
        """The number of chips or virtual devices."""
        return math.prod(self.shape)

    @property
    def chips_per_host(self) -> int:
        """The number of chips of each host."""
        if self.chip is None or self.num_chips in self.chip.machine_types:
            return self.num_chips
        return self.chip.chips_per_host

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return self.num_chips // self.chips_per_host

    @property
    def machine_type(self) -> str | None:
        """The name of the hosts' machine type in the catalogue; None for CPUs."""
        return None if self.chip is None else self.chip.machine_types[self.chips_per_host]

    @property
    def accelerator(self) -> AcceleratorConfig | None:
        """The accelerators of each host, counted as in the catalogue; None for CPUs."""
        if self.chip is None:
            return None
        return AcceleratorConfig(type=self.chip.accelerator, count=self.chips_per_host * self.chip.cores_per_chip)

    def describe(self) -> str:
        """Returns a description of the target: "8 TPU v5e chips (2x4) on 1 host"."""
        if self.chip is None:
            return "1 virtual CPU device" if self.num_chips == 1 else f"{self.num_chips} virtual CPU devices"
        chips = "chip" if self.num_chips == 1 else "chips"
        hosts = "host" if self.num_hosts == 1 else "hosts"
        shape = self.name.partition(":")[2]
        return f"{self.num_chips} TPU {self.chip.generation} {chips} ({shape}) on {self.num_hosts} {hosts}"

    def usd_per_hour(self, catalogue: Catalogue, *, region: str | None = None) -> Decimal | None:
        """Returns the list price of the whole target in US dollars per hour; None if a part of it has no price.

        Args:
            catalogue: the catalogue of machine types and prices.
            region: the region whose price of an ML unit applies; None for the Americas.

        Raises:
            ConfigError: the region is not in the catalogue.
        """
        unit_usd = catalogue.ml_unit_usd(region)
        if self.machine_type is None:
            return None
        units = catalogue.units_per_hour(self.machine_type, accelerator=self.accelerator, region=region)
        if units is None:
            return None
        usd = units * unit_usd * self.num_hosts
        return Decimal(usd.numerator) / Decimal(usd.denominator)

    def price_list_names(self, catalogue: Catalogue) -> tuple[str, ...]:
        """Returns the names of the price lists that the target's price is from; empty if it has no price."""
        if self.machine_type is None:
            return ()
        return catalogue.price_list_names(self.machine_type, accelerator=self.accelerator)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of a process that plans for this target.

        The environment has a virtual device for each chip, and the variables that libtpu needs.

        Args:
            base: the environment of this process.
        """
        libtpu = _LIBTPU_ENV if self.chip is not None else {}
        # A plan is made in one process, even if this environment says that it is one of several.
        alone = {name: value for name, value in base.items() if name not in PLACE_VARIABLES | _TPU_PLACE}
        return {**alone, **Topology().to_env(), **virtual_devices_env(self.num_chips), **libtpu}
