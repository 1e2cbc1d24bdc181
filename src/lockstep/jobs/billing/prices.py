"""The operator's own prices of machine types and accelerators, which replace those of the published lists."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Final, Literal, final

from pydantic import BeforeValidator, Field

from lockstep.errors import ConfigError, closest
from lockstep.jobs.input.spec import AcceleratorType
from lockstep.jobs.machines.catalogue import Accelerator, Catalogue, PriceList, Source, StorageEntry
from lockstep.jobs.parsing.fields import AbstractDocument, Dollars, Text, rule_error
from lockstep.jobs.parsing.rules import parse_document

BUCKET_SCHEMES: Final = ("file", "gs", "s3")
"""The URL schemes of buckets that a service may use."""

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _read_day(value: object) -> object:
    if type(value) is date:  # as YAML reads a day without quotes
        return value
    try:
        if isinstance(value, str) and _DAY.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise rule_error(allowed="a day, such as 2026-11-01")


@final
class PriceFile(AbstractDocument):
    """A file of prices.

    Attributes:
        date: the date of the prices.
        source: a description of where the prices come from.
        machine_types: US dollars per hour by machine type, without the accelerators that a job adds.
        accelerators: US dollars per hour of one accelerator, by accelerator type.
        storage_per_gib_month: US dollars for one GiB in the service's bucket for one month.
        version: the version of the file format.
    """

    date: Annotated[date, BeforeValidator(_read_day)]
    source: Text = Field(min_length=1)
    machine_types: dict[str, Dollars] = Field(default_factory=dict[str, Dollars])
    accelerators: dict[AcceleratorType, Dollars] = Field(default_factory=dict[AcceleratorType, Dollars])
    storage_per_gib_month: Dollars | None = None
    version: Literal[1] = 1


def apply_prices(catalogue: Catalogue, *, document: object, source: str) -> Catalogue:
    """Returns a catalogue in which the operator's own prices replace those of the lists.

    Args:
        catalogue: machines and list prices.
        document: the parsed YAML of a `PriceFile`.
        source: the name of the file, for error messages.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type, or names a machine type that is not in the
            catalogue.
    """
    read = parse_document(PriceFile, document=document, source=source)
    machines = dict(catalogue.machine_types)
    for name, usd in read.machine_types.items():
        if name not in machines:
            near = closest(name, machines)
            allowed = None if near else tuple(machines)
            raise ConfigError(f"{source}: machineTypes", received=name, allowed=allowed, action=near)
        machines[name] = machines[name].model_copy(update={"usd_per_hour": usd, "source": Source.OPERATOR})
    accelerators = dict(catalogue.accelerators)
    for kind, usd in read.accelerators.items():
        before = accelerators.get(kind, Accelerator(counts=()))
        changes = {"usd_per_hour": usd, "priced_count": 1, "source": Source.OPERATOR}
        accelerators[kind] = before.model_copy(update=changes)
    storage = dict(catalogue.storage)
    if read.storage_per_gib_month is not None:
        own_entry = StorageEntry(usd_per_gib_month=read.storage_per_gib_month, source=Source.OPERATOR)
        storage = dict.fromkeys(BUCKET_SCHEMES, own_entry)
    own = PriceList(name=f"{read.source}, {read.date.isoformat()}", regions=tuple(catalogue.ml_unit_usd_per_hour))
    lists = {**catalogue.price_lists, Source.OPERATOR: own}
    return catalogue.model_copy(
        update={"price_lists": lists, "machine_types": machines, "accelerators": accelerators, "storage": storage}
    )
