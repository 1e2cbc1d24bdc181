"""Defines the machine catalogue: machine types, accelerators, scale tiers, and their list prices.

A price is exact (`fractions.Fraction`) until somebody rounds it. It is None if no price was published: a machine
without a price is unpriced, never free. The data is the packaged ``machines.yaml``, which names the source of each
price.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Annotated, Final, Literal, Self, final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lockstep.errors import ConfigError, closest
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType, Role, ScaleTier
from lockstep.jobs.parsing.rules import Violation, parse_document, raise_violations
from lockstep.jobs.parsing.yaml_documents import parse_yaml

DEFAULT_PRICE_REGION: Final = "americas"


def _read_price(value: object) -> object:
    # Quoted in the file, so that the price never becomes a float between the list and the bill.
    return Decimal(value) if isinstance(value, str) else value


Price = Annotated[Decimal, BeforeValidator(_read_price), Field(strict=True, ge=0)]


class AbstractEntry(BaseModel):
    """An entry of the catalogue: frozen; unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@final
class Source(StrEnum):
    """The source of a price."""

    PUBLISHED = "published"
    """The published price list."""
    DERIVED = "derived"
    """A published sum minus its other parts."""
    UNITS = "units"
    """A published number of ML units."""
    CLOUD_TPU = "cloud_tpu"
    """The price list of Cloud TPU, whose prices include the host."""
    CLOUD_STORAGE = "cloud_storage"
    """The price page of Cloud Storage."""
    OPERATOR = "operator"
    """The operator's own prices, which apply in every region: see `lockstep.jobs.billing.prices`."""


@final
class Category(StrEnum):
    """The contract's categories of machine types; a job cannot mix the first two."""

    COMPUTE_ENGINE = "compute_engine"
    LEGACY = "legacy"
    TPU = "tpu"


@final
class Accelerator(AbstractEntry):
    """A type of accelerator.

    Attributes:
        counts: the numbers of accelerators that one replica may have.
        usd_per_hour: the list price of `priced_count` accelerators in the Americas, in US dollars per hour; None
            without a published price.
        priced_count: the number of accelerators that the price is for.
        source: the source of the price.
    """

    counts: tuple[int, ...]
    usd_per_hour: Price | None = None
    priced_count: int = Field(default=1, ge=1)
    source: Source | None = None


@final
class MachineType(AbstractEntry):
    """A machine type.

    Attributes:
        vcpus: the number of virtual CPUs.
        memory_gib: the memory, in GiB.
        category: the contract's category.
        accelerators: the number of built-in accelerators, by type; at most one type.
        usd_per_hour: the list price in the Americas, in US dollars per hour, without accelerators that the job asks
            for; None without a published price.
        source: the source of the price.
    """

    vcpus: int
    memory_gib: float
    category: Category = Category.COMPUTE_ENGINE
    accelerators: dict[AcceleratorType, int] = Field(default_factory=dict[AcceleratorType, int], max_length=1)
    usd_per_hour: Price | None = None
    source: Source | None = None

    @property
    def memory_mib(self) -> int:
        """The memory, in whole MiB."""
        return int(self.memory_gib * 1024)

    @property
    def built_in(self) -> AcceleratorConfig | None:
        """The built-in accelerators; None if there are none."""
        return next((AcceleratorConfig(type=kind, count=n) for kind, n in self.accelerators.items()), None)


@final
class TierMember(AbstractEntry):
    """The replicas of one role in a scale tier.

    Attributes:
        machine_type: the name of the machine type.
        count: the number of replicas.
        accelerator: the accelerators of each replica.
    """

    machine_type: str
    count: int = 1
    accelerator: AcceleratorConfig | None = None


@final
class PriceList(AbstractEntry):
    """A published price list.

    Attributes:
        name: the list's name, with its date or location.
        regions: the price regions in which the list's prices apply. Prices in ML units apply wherever a unit has a
            price.
    """

    name: str
    regions: tuple[str, ...]


@final
class StorageEntry(AbstractEntry):
    """The price of storage in one kind of bucket.

    Attributes:
        usd_per_gib_month: the price of a GiB month, in US dollars.
        source: the source of the price.
    """

    usd_per_gib_month: Price
    source: Source


@final
@dataclass(frozen=True, kw_only=True)
class StoragePrice:
    """The price of storage in a bucket.

    Attributes:
        usd_per_gib_month: the price of a GiB month, in US dollars.
        source: the name of the price list.
    """

    usd_per_gib_month: Fraction
    source: str


@final
class Catalogue(AbstractEntry):
    """All machine types, accelerators and scale tiers, with their prices.

    Attributes:
        version: the version of the catalogue's format.
        price_lists: the price lists, by their sources.
        ml_unit_usd_per_hour: the price of one ML unit in US dollars per hour, by price region.
        region_prefixes: the prefixes of region names, by price region.
        accelerators: the accelerators, by type.
        machine_types: the machine types, by name.
        scale_tiers: the replicas of each scale tier, by role.
        storage: the prices of storage, by URL scheme of the bucket; a scheme without an entry is unpriced.
    """

    version: Literal[1]
    price_lists: dict[Source, PriceList]
    ml_unit_usd_per_hour: dict[str, Price]
    region_prefixes: dict[str, tuple[str, ...]]
    accelerators: dict[AcceleratorType, Accelerator]
    machine_types: dict[str, MachineType]
    scale_tiers: dict[ScaleTier, dict[Role, TierMember]]
    storage: dict[str, StorageEntry] = Field(default_factory=dict[str, StorageEntry])

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations(
            Violation(path=(section, name), allowed="a source beside the price, and none without")
            for section, entries in (("accelerators", self.accelerators), ("machine_types", self.machine_types))
            for name, entry in entries.items()
            if (entry.usd_per_hour is None) is not (entry.source is None)
        )
        raise_violations(
            Violation(path=("price_lists", source), allowed="a list for every source")
            for source in Source
            if source is not Source.OPERATOR and source not in self.price_lists
        )
        return self

    def machine_type(self, name: str, *, what: str = "machine type") -> MachineType:
        """Returns the machine type with a given name.

        Args:
            name: the name of the machine type.
            what: the name of the field in error messages.

        Raises:
            ConfigError: If there is no machine type with this name.
        """
        found = self.machine_types.get(name)
        if found is None:
            near = closest(name, self.machine_types)
            raise ConfigError(what, received=name, allowed=None if near else tuple(self.machine_types), action=near)
        return found

    def price_region(self, region: str | None, *, what: str = "region") -> str:
        """Returns the price region that a region belongs to: "americas", "europe" or "asia".

        Args:
            region: the region's name, such as ``us-central1``; None means the Americas.
            what: the name of the field in error messages.

        Raises:
            ConfigError: If no published price region contains the region.
        """
        found = self._price_region(region)
        if found is not None:
            return found
        known = [f"{prefix}..." for prefixes in self.region_prefixes.values() for prefix in prefixes]
        raise ConfigError(what, received=region, allowed=known)

    def has_region(self, region: str | None) -> bool:
        """Returns whether a published price region contains a region; None means the Americas."""
        return self._price_region(region) is not None

    def _price_region(self, region: str | None) -> str | None:
        if region is None:
            return DEFAULT_PRICE_REGION
        found = (name for name, prefixes in self.region_prefixes.items() if region.startswith(prefixes))
        return next(found, None)

    def ml_unit_usd(self, region: str | None) -> Fraction:
        """Returns the price of one ML unit in a region, in US dollars per hour.

        Raises:
            ConfigError: If no published price region contains the region.
        """
        return self.ml_unit_usd_of_price_region(self.price_region(region))

    def ml_unit_usd_of_price_region(self, price_region: str) -> Fraction:
        """Returns the price of one ML unit in a price region, in US dollars per hour.

        Args:
            price_region: a price region that `price_region` returned.
        """
        return Fraction(self.ml_unit_usd_per_hour[price_region])

    def units_per_hour(
        self, machine_type: str, *, accelerator: AcceleratorConfig | None, region: str | None = None
    ) -> Fraction | None:
        """Returns the exact ML units that a replica consumes per hour; None if a part of it has no price in the region.

        Args:
            machine_type: the name of the replica's machine type.
            accelerator: the replica's accelerators, including those that are built into the machine type.
            region: the replica's region; None means the Americas.

        Raises:
            ConfigError: If there is no machine type with this name, or if no price region contains the region.
        """
        price_region = self.price_region(region)
        units = Fraction(0)
        for entry, count in self._priced_parts(machine_type, accelerator):
            if entry is None or entry.usd_per_hour is None or entry.source is None:
                return None
            if entry.source is Source.OPERATOR:  # the price there; lists have the price in the Americas
                units += Fraction(entry.usd_per_hour) * count / self.ml_unit_usd_of_price_region(price_region)
                continue
            if price_region not in self.price_lists[entry.source].regions:
                return None
            units += Fraction(entry.usd_per_hour) * count / self.ml_unit_usd_of_price_region(DEFAULT_PRICE_REGION)
        return units

    def usd_per_hour(
        self, machine_type: str, *, accelerator: AcceleratorConfig | None, region: str | None = None
    ) -> Fraction | None:
        """Returns the price of one replica in US dollars per hour; None if a part of it has no price in the region.

        The arguments and errors are those of `units_per_hour`.
        """
        units = self.units_per_hour(machine_type, accelerator=accelerator, region=region)
        return None if units is None else units * self.ml_unit_usd(region)

    def price_list_names(self, machine_type: str, *, accelerator: AcceleratorConfig | None) -> tuple[str, ...]:
        """Returns the names of the price lists behind a replica's price.

        Args:
            machine_type: the name of the replica's machine type.
            accelerator: the replica's accelerators, including those that are built into the machine type.

        Raises:
            ConfigError: If there is no machine type with this name.
        """
        parts = self._priced_parts(machine_type, accelerator)
        sources = [entry.source for entry, _ in parts if entry is not None and entry.source is not None]
        return tuple(dict.fromkeys(self.price_lists[source].name for source in sources))

    def storage_price(self, url: str) -> StoragePrice | None:
        """Returns the price of storage in a bucket; None if it is unpriced.

        Args:
            url: the URL of the bucket.
        """
        entry = self.storage.get(url.partition("://")[0] if "://" in url else "file")
        if entry is None:
            return None
        return StoragePrice(
            usd_per_gib_month=Fraction(entry.usd_per_gib_month), source=self.price_lists[entry.source].name
        )

    def _priced_parts(
        self, machine_type: str, accelerator: AcceleratorConfig | None
    ) -> list[tuple[MachineType | Accelerator | None, Fraction]]:
        machine = self.machine_type(machine_type)
        if accelerator is None or accelerator == machine.built_in:
            return [(machine, Fraction(1))]
        entry = self.accelerators.get(accelerator.type)
        accelerators = (entry, Fraction(accelerator.count, 1 if entry is None else entry.priced_count))
        # A TPU's price includes its host.
        return [accelerators] if machine.category is Category.TPU else [(machine, Fraction(1)), accelerators]


def parse_catalogue(text: str) -> Catalogue:
    """Parses a catalogue from its YAML text.

    Raises:
        ConfigError: If the text is not valid YAML, or not a catalogue.
    """
    source = "machine catalogue"
    return parse_document(Catalogue, document=parse_yaml(text, source=source), source=source)


@cache
def load_catalogue() -> Catalogue:
    """Returns the packaged catalogue.

    This is the only function here that reads a file. The file is part of the code, and the same at every call.
    """
    return parse_catalogue(files("lockstep.jobs.machines").joinpath("machines.yaml").read_text("utf-8"))
