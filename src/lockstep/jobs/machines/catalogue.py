"""The machine catalogue: machine types, accelerators, scale tiers, and their list prices.

A price is exact (`fractions.Fraction`) until somebody rounds it, and is None where none was published: what has no
price is unpriced, never free. The catalogue itself is the packaged ``machines.yaml``, which says where each price
comes from.
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
    # Quoted in the file, so that no float comes between the list and the bill.
    return Decimal(value) if isinstance(value, str) else value


Price = Annotated[Decimal, BeforeValidator(_read_price), Field(strict=True, ge=0)]


class AbstractEntry(BaseModel):
    """An entry of the catalogue: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@final
class Source(StrEnum):
    """Where a price comes from."""

    PUBLISHED = "published"
    """The published list."""
    DERIVED = "derived"
    """What is left of a published sum after its other parts."""
    UNITS = "units"
    """A published figure in ML units."""
    CLOUD_TPU = "cloud_tpu"
    """The price list of Cloud TPU, whose prices have the host in them."""
    CLOUD_STORAGE = "cloud_storage"
    """The price page of Cloud Storage."""
    OPERATOR = "operator"
    """The operator's own prices, in whatever region: see `lockstep.jobs.billing.prices`."""


@final
class Category(StrEnum):
    """The contract's kinds of machine types; the first two do not mix in one job."""

    COMPUTE_ENGINE = "compute_engine"
    LEGACY = "legacy"
    TPU = "tpu"


@final
class Accelerator(AbstractEntry):
    """An accelerator.

    Attributes:
        counts: how many of it one replica may have.
        usd_per_hour: list price of `priced_count` of it in the Americas, None without a published one.
        priced_count: how many of it the price is for.
        source: where the price comes from.
    """

    counts: tuple[int, ...]
    usd_per_hour: Price | None = None
    priced_count: int = Field(default=1, ge=1)
    source: Source | None = None


@final
class MachineType(AbstractEntry):
    """A machine type.

    Attributes:
        vcpus: virtual processors.
        memory_gib: memory in GiB.
        category: its kind.
        accelerators: those that come with it: at most one type, by count.
        usd_per_hour: list price in the Americas without accelerators asked for, None without a published one.
        source: where the price comes from.
    """

    vcpus: int
    memory_gib: float
    category: Category = Category.COMPUTE_ENGINE
    accelerators: dict[AcceleratorType, int] = Field(default_factory=dict[AcceleratorType, int], max_length=1)
    usd_per_hour: Price | None = None
    source: Source | None = None

    @property
    def memory_mib(self) -> int:
        """Its memory in whole MiB."""
        return int(self.memory_gib * 1024)

    @property
    def built_in(self) -> AcceleratorConfig | None:
        """The accelerators that come with it."""
        return next((AcceleratorConfig(type=kind, count=n) for kind, n in self.accelerators.items()), None)


@final
class TierMember(AbstractEntry):
    """One role's share of a scale tier.

    Attributes:
        machine_type: name of the machine type.
        count: how many replicas.
        accelerator: what each has.
    """

    machine_type: str
    count: int = 1
    accelerator: AcceleratorConfig | None = None


@final
class PriceList(AbstractEntry):
    """A published list of prices.

    Attributes:
        name: what it is called, with the day or the place that it is of.
        regions: price regions that its prices hold in; those of ML units hold wherever a unit has a price.
    """

    name: str
    regions: tuple[str, ...]


@final
class StorageEntry(AbstractEntry):
    """A kind of bucket.

    Attributes:
        usd_per_gib_month: price of a GiB that is kept for a month.
        source: where the price comes from.
    """

    usd_per_gib_month: Price
    source: Source


@final
@dataclass(frozen=True, kw_only=True)
class StoragePrice:
    """What it costs to keep something.

    Attributes:
        usd_per_gib_month: US dollars for a GiB over a month.
        source: where the price is from, in words.
    """

    usd_per_gib_month: Fraction
    source: str


@final
class Catalogue(AbstractEntry):
    """All machine types, accelerators and scale tiers, with their prices.

    Attributes:
        version: version of the catalogue's form.
        price_lists: the lists that prices are from, in words, by the sources that stand for them.
        ml_unit_usd_per_hour: what one ML unit costs for an hour, by price region.
        region_prefixes: prefixes of region names by price region.
        accelerators: by name.
        machine_types: by name.
        scale_tiers: makeup by tier, each by role.
        storage: what is kept in buckets, by the scheme of their URLs; one without an entry is unpriced.
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
        """Returns a machine type.

        Args:
            name: its name.
            what: what to call it in the error: the field that named it.

        Raises:
            ConfigError: there is none of this name.
        """
        found = self.machine_types.get(name)
        if found is None:
            near = closest(name, self.machine_types)
            raise ConfigError(what, received=name, allowed=None if near else tuple(self.machine_types), action=near)
        return found

    def price_region(self, region: str | None, *, what: str = "region") -> str:
        """Returns the price region that a region belongs to: "americas", "europe" or "asia".

        Args:
            region: a region's name such as ``us-central1``; None stands for the Americas.
            what: what to call it in the error: the field that named it.

        Raises:
            ConfigError: no published price region has it.
        """
        found = self._price_region(region)
        if found is not None:
            return found
        known = [f"{prefix}..." for prefixes in self.region_prefixes.values() for prefix in prefixes]
        raise ConfigError(what, received=region, allowed=known)

    def has_region(self, region: str | None) -> bool:
        """Says whether a published price region has a region; None stands for the Americas."""
        return self._price_region(region) is not None

    def _price_region(self, region: str | None) -> str | None:
        if region is None:
            return DEFAULT_PRICE_REGION
        found = (name for name, prefixes in self.region_prefixes.items() if region.startswith(prefixes))
        return next(found, None)

    def ml_unit_usd(self, region: str | None) -> Fraction:
        """Returns what one ML unit costs for an hour in a region, in US dollars.

        Raises:
            ConfigError: no published price region has it.
        """
        return self.ml_unit_usd_in(self.price_region(region))

    def ml_unit_usd_in(self, price_region: str) -> Fraction:
        """Returns what one ML unit costs for an hour in a price region, in US dollars.

        Args:
            price_region: one that `price_region` returned.
        """
        return Fraction(self.ml_unit_usd_per_hour[price_region])

    def units_per_hour(
        self, machine_type: str, *, accelerator: AcceleratorConfig | None, region: str | None = None
    ) -> Fraction | None:
        """Returns the ML units that one replica consumes in an hour, exactly; None where a part has no price there.

        Args:
            machine_type: name of its machine type.
            accelerator: what it has, those that come with the machine type included.
            region: where it is; None stands for the Americas.

        Raises:
            ConfigError: there is no machine type of this name, or no price region has the region.
        """
        price_region = self.price_region(region)
        units = Fraction(0)
        for entry, count in self._priced_parts(machine_type, accelerator):
            if entry is None or entry.usd_per_hour is None or entry.source is None:
                return None
            if entry.source is Source.OPERATOR:  # what is paid there; lists say what is paid in the Americas
                units += Fraction(entry.usd_per_hour) * count / self.ml_unit_usd_in(price_region)
                continue
            if price_region not in self.price_lists[entry.source].regions:
                return None
            units += Fraction(entry.usd_per_hour) * count / self.ml_unit_usd_in(DEFAULT_PRICE_REGION)
        return units

    def usd_per_hour(
        self, machine_type: str, *, accelerator: AcceleratorConfig | None, region: str | None = None
    ) -> Fraction | None:
        """Returns what one replica costs in an hour, in US dollars; None where a part has no price there.

        Args and errors are those of `units_per_hour`.
        """
        units = self.units_per_hour(machine_type, accelerator=accelerator, region=region)
        return None if units is None else units * self.ml_unit_usd(region)

    def price_list_names(self, machine_type: str, *, accelerator: AcceleratorConfig | None) -> tuple[str, ...]:
        """Returns the names of the lists that a replica's price is from.

        Args:
            machine_type: name of its machine type.
            accelerator: what it has, those that come with the machine type included.

        Raises:
            ConfigError: there is no machine type of this name.
        """
        parts = self._priced_parts(machine_type, accelerator)
        sources = [entry.source for entry, _ in parts if entry is not None and entry.source is not None]
        return tuple(dict.fromkeys(self.price_lists[source].name for source in sources))

    def storage_price(self, url: str) -> StoragePrice | None:
        """Returns what it costs to keep something in a bucket; None where it is unpriced.

        Args:
            url: the bucket.
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
        # The host of a TPU is in the TPU's price.
        return [accelerators] if machine.category is Category.TPU else [(machine, Fraction(1)), accelerators]


def parse_catalogue(text: str) -> Catalogue:
    """Reads a catalogue from its YAML text.

    Raises:
        ConfigError: it is not YAML, or not a catalogue.
    """
    source = "machine catalogue"
    return parse_document(Catalogue, document=parse_yaml(text, source=source), source=source)


@cache
def load_catalogue() -> Catalogue:
    """Returns the packaged catalogue.

    This reads a file, which nothing else in this room does: the file is part of the code and the same at every call.
    """
    return parse_catalogue(files("lockstep.jobs.machines").joinpath("machines.yaml").read_text("utf-8"))
