"""Options of a data set, by ``tf.data``'s names. Options of ``tf.data`` that only affect speed are rejected."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, final

from lockstep.errors import InvalidInputError
from lockstep.strategies.input import AutoShardPolicy


class _Named:
    """Rejects attributes that the class does not have, such as further options of ``tf.data``."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType] - of data classes alone
        if name not in known:
            raise InvalidInputError(
                f"options of a data set have no {name}",
                received=f"{name} = {value!r}",
                allowed=known,
                action="remove it: it only affects speed",
            )
        object.__setattr__(self, name, value)


@final
@dataclass(kw_only=True)
class DistributeOptions(_Named):
    """How several processes divide a data set, by the name of ``tf.data.experimental.DistributeOptions``.

    Attributes:
        auto_shard_policy: what the processes divide: files (FILE), nothing (OFF), or the rows of global batches that
            each process makes (DATA). AUTO is FILE if there are at least as many files as processes, otherwise DATA.
    """

    auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "auto_shard_policy" and not isinstance(value, AutoShardPolicy):
            raise InvalidInputError(name, received=repr(value), allowed="a lockstep.strategies.AutoShardPolicy")
        super().__setattr__(name, value)


@final
@dataclass(kw_only=True)
class Options(_Named):
    """Options of a data set, by the name of ``tf.data.Options``.

    Attributes:
        deterministic: accepted without effect; the order of elements is always deterministic.
        experimental_distribute: how several processes divide the data.
    """

    deterministic: bool | None = None
    experimental_distribute: DistributeOptions = field(default_factory=DistributeOptions)

    def merged(self, later: Options) -> Options:
        """Returns these options, overridden by those that are set in the later ones."""
        policy = later.experimental_distribute.auto_shard_policy
        if policy is AutoShardPolicy.AUTO:
            policy = self.experimental_distribute.auto_shard_policy
        return Options(
            deterministic=self.deterministic if later.deterministic is None else later.deterministic,
            experimental_distribute=DistributeOptions(auto_shard_policy=policy),
        )
