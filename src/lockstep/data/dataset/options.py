"""Options of a data set, by ``tf.data``'s names: those that mean something here."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, final

from lockstep.errors import InvalidInputError
from lockstep.strategies.input import AutoShardPolicy


class _Named:
    """Refuses names that it does not have, where ``tf.data`` has more of them."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = [each.name for each in fields(self)]  # pyright: ignore[reportArgumentType] - of data classes alone
        if name not in known:
            raise InvalidInputError(
                f"options of a data set have no {name}",
                received=f"{name} = {value!r}",
                allowed=known,
                action="leave it out: it would change speed alone",
            )
        object.__setattr__(self, name, value)


@final
@dataclass(kw_only=True)
class DistributeOptions(_Named):
    """How several processes divide a data set, by the name of ``tf.data.experimental.DistributeOptions``.

    Attributes:
        auto_shard_policy: what they divide: files (FILE), nothing (OFF), or rows of batches that each of them makes
            (DATA); AUTO is FILE where the data lies in as many files as there are processes or more, DATA elsewhere.
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
        deterministic: taken; elements always come in their order.
        experimental_distribute: how several processes divide the data.
    """

    deterministic: bool | None = None
    experimental_distribute: DistributeOptions = field(default_factory=DistributeOptions)

    def merged(self, later: Options) -> Options:
        """Returns both, the later ones where they say something."""
        policy = later.experimental_distribute.auto_shard_policy
        if policy is AutoShardPolicy.AUTO:
            policy = self.experimental_distribute.auto_shard_policy
        return Options(
            deterministic=self.deterministic if later.deterministic is None else later.deterministic,
            experimental_distribute=DistributeOptions(auto_shard_policy=policy),
        )
