"""A column type that stores values of a Python type as JSON."""

from __future__ import annotations

from typing import Any, final

from pydantic import TypeAdapter
from sqlalchemy import JSON, Dialect
from sqlalchemy.types import TypeDecorator
from typing_extensions import override


@final
class JsonOf(TypeDecorator[Any]):
    """The type of a JSON column whose values have one Python type.

    Args:
        adapter: parses and serializes the values.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        super().__init__()
        self.adapter = adapter

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.adapter.dump_python(value, mode="json")

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.adapter.validate_python(value)
