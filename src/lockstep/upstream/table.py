"""The table of replaced functions of Keras and JAX: one row for each function."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, final


@final
class Stage(enum.Enum):
    """The event at which rows are applied. All rows of a stage are applied together."""

    STRATEGY = "a strategy, or a `lockstep.function`, is made"
    BACKEND = "the backend is prepared, before the first computation"
    MEETING = "the processes of a job meet"
    PLAN = "`lockstep plan` begins"


@final
@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A function of Keras or JAX that is replaced.

    Attributes:
        stage: when the function is replaced.
        owner: the class or module of the function, "module:Class" or "module". For an inherited method, the class that
            defines it is changed. "lowering" for the rule of a JAX primitive. "module of module:Class" for the module
            that defines the class's `_direct_assign`.
        name: the function's name in its owner; for a primitive, its name in `jax.lax`.
        parameters: the names of the parameters that the replacement relies on, in their order. The function may have
            others, which are passed on. For a class: the methods that it must have.
        wrapper: the function that takes the original and returns its replacement, "module:function".
        becomes: what the function does after the replacement.
        until: the change of Keras or JAX that would make the row unnecessary.
    """

    stage: Stage
    owner: str
    name: str
    parameters: tuple[str, ...]
    wrapper: str
    becomes: str
    until: str

    @property
    def title(self) -> str:
        """The last part of the owner's name and the function's name: "Model.fit"."""
        return f"{self.owner.rpartition(':')[2].rpartition('.')[2]}.{self.name}"


_MODEL: Final = "keras:Model"
_OPTIMIZER: Final = "keras:Optimizer"
_SCALED: Final = "keras.optimizers:LossScaleOptimizer"
_NORMALIZATION: Final = "keras.layers:BatchNormalization"
_VARIABLES_MODULE: Final = "module of keras:Variable"
_TRAINER: Final = "keras.src.backend.jax.trainer"
_FITTING: Final = "lockstep.strategies.fitting"
_UPDATES: Final = "lockstep.strategies.updates"
_SHARDING: Final = "lockstep.strategies.sharding"
_LAYERS: Final = "lockstep.strategies.keras_layers"
_XLA_CPU: Final = "lockstep.strategies.xla_cpu"
_HOOK: Final = "Keras has a hook around a model's methods"
_GRADIENTS: Final = "Keras has a hook between gradients and updates"
_REPLICAS: Final = "Keras supports replicas on JAX"


def _runs(name: str, first: str = "x") -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name=name,
        parameters=("self", first),
        wrapper=f"{_FITTING}:entering_strategy",
        becomes="enters the strategy that the model was compiled under, and checks the arguments",
        until=_HOOK,
    )


def _makes(kind: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name=f"make_{kind}_function",
        parameters=("self", "force"),
        wrapper=f"{_FITTING}:making_{kind}_function",
        becomes="creates the strategy's own step function",
        until=f"Keras takes `{kind}_function` from the distribution",
    )


def _steps(kind: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name=f"{kind}_step",
        parameters=("self", "state", "data"),
        wrapper="lockstep.strategies.keras_steps:taking_a_batch_alone",
        becomes=f"also accepts a batch alone: `super().{kind}_step(data)`",
        until="Keras's JAX trainer accepts such steps",
    )


def _applies(owner: str, name: str, parameters: tuple[str, ...], wrapper: str, becomes: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=owner,
        name=name,
        parameters=("self", *parameters),
        wrapper=f"{_UPDATES}:{wrapper}",
        becomes=becomes,
        until=_GRADIENTS,
    )


def _optimizes(owner: str) -> tuple[Replacement, ...]:
    return (
        _applies(owner, "apply", ("grads", "trainable_variables"), "applying", "sums gradients, or defers updates"),
        _applies(owner, "build", (), "building", "records the optimizer, and checks a layout map's patterns"),
    )


def _lowers(name: str, wrapper: str, becomes: str, until: str) -> Replacement:
    return Replacement(
        stage=Stage.BACKEND,
        owner="lowering",
        name=name,
        parameters=(),
        wrapper=wrapper,
        becomes=becomes,
        until=until,
    )


REPLACEMENTS: Final[tuple[Replacement, ...]] = (
    Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name="compile",
        parameters=("self",),
        wrapper=f"{_FITTING}:remembering_strategy",
        becomes="records the current strategy",
        until=_HOOK,
    ),
    *(_runs(name) for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")),
    *(_makes(kind) for kind in ("train", "test", "predict")),
    *(_steps(kind) for kind in ("train", "test", "predict")),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name="_symbolic_build",
        parameters=("self", "data_batch"),
        wrapper=f"{_FITTING}:building_steps",
        becomes="builds a model by its step if the step takes a batch alone, because `call` may not fit the data",
        until="Keras builds a model by its own step",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_TRAINER,
        name="_distribute_data",
        parameters=("data",),
        wrapper=f"{_FITTING}:placing_batches",
        becomes="places a batch with any number of rows, which each process may hold whole",
        until="`Distribution` places batches itself",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_TRAINER,
        name="JAXEpochIterator",
        parameters=("_get_iterator", "_enumerate_iterator", "_interrupted_warning"),
        wrapper="lockstep.strategies.epochs:placing_epochs",
        becomes="places each batch by its own number of rows, starts within an epoch, restarts data that ends",
        until="Keras places each batch by its own number of rows (3.16 does), and can start within an epoch",
    ),
    *_optimizes(_OPTIMIZER),
    *_optimizes(_SCALED),
    _applies(
        _SCALED,
        "stateless_apply",
        ("optimizer_variables", "grads", "trainable_variables"),
        "applying_statelessly",
        "sums gradients, or defers updates; for other optimizers, `stateless_apply` calls `apply`, which does so",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_OPTIMIZER,
        name="add_variable",
        parameters=("self", "shape", "layout"),
        wrapper=f"{_SHARDING}:laying_out_state",
        becomes="divides an optimizer's variables as `ShardedStrategy` specifies",
        until="Keras passes the parameter when it asks `Distribution` for the layout of an optimizer's variable",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:Layer",
        name="stateless_call",
        parameters=("self", "trainable_variables"),
        wrapper=f"{_SHARDING}:gathering_parameters",
        becomes="gathers divided parameters for use",
        until="`Distribution` distinguishes a variable's layout in use from its layout at rest",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras.random:SeedGenerator",
        name="next",
        parameters=("self", "ordered"),
        wrapper=f"{_LAYERS}:drawing_for_replicas",
        becomes="draws different random numbers on each replica",
        until=_REPLICAS,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_NORMALIZATION,
        name="__init__",
        parameters=("self", "synchronized"),
        wrapper=f"{_LAYERS}:allowing_synchronized",
        becomes="accepts `synchronized=True`, which Keras rejects on JAX",
        until=_REPLICAS,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_NORMALIZATION,
        name="_moments",
        parameters=("self", "inputs", "mask"),
        wrapper=f"{_LAYERS}:taking_moments_over_replicas",
        becomes="computes synchronized moments over all replicas",
        until=_REPLICAS,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:Variable",
        name="assign",
        parameters=("self", "value"),
        wrapper="lockstep.strategies.assigning:copying",
        becomes="copies another variable's value, because compiled steps donate buffers",
        until="`Variable.assign` copies, as TensorFlow's does",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:Variable",
        name="_direct_assign",
        parameters=("self", "value"),
        wrapper="lockstep.strategies.peers.agreement:agreeing",
        becomes="places a value on the devices of several processes without a collective, once they agree on it",
        until="JAX places a value on the devices of several processes without gathering it from all of them",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:StatelessScope",
        name="get_current_value",
        parameters=("self", "variable"),
        wrapper="lockstep.strategies.loops.lifting:finding_outer_values",
        becomes="looks up missing values in the enclosing scopes",
        until="Keras's stateless scopes can be nested",
    ),
    _lowers(
        "select_and_scatter_add_p",
        f"{_XLA_CPU}:lowering_pooling_gradient",
        "runs max pooling's gradient as whole-array operations on CPUs",
        "XLA runs `select_and_scatter_add` in parallel on CPUs",
    ),
    _lowers(
        "dot_general_p",
        f"{_XLA_CPU}:lowering_narrow_products",
        "keeps XLA from rearranging a wide layer's weight gradient on CPUs",
        "XLA's matrix products on CPUs pack the narrower operand",
    ),
    _lowers(
        "conv_general_dilated_p",
        "lockstep.strategies.grouped_convolutions:dividing_rows",
        "divides grouped convolutions and kernels' gradients by rows, because XLA's partitioner divides them wrongly",
        "https://github.com/openxla/xla/issues/47945 and the partitioner's sum over copies are fixed",
    ),
    Replacement(
        stage=Stage.MEETING,
        owner="jax._src.lib:_jax",
        name="make_gloo_tcp_collectives",
        parameters=(),
        wrapper="lockstep.upstream.jax_processes:listening_at_host",
        becomes="makes collectives on CPUs listen at the address by which the processes have met",
        until="`jax.distributed.initialize` accepts the address",
    ),
    Replacement(
        stage=Stage.PLAN,
        owner="keras.src.backend.jax.distribution_lib",
        name="distribute_tensor",
        parameters=("tensor", "layout"),
        wrapper="lockstep.planning.sharing:sharing_copies",
        becomes="makes all copies of a replicated array share one host buffer",
        until="JAX has virtual devices without memory of their own",
    ),
    Replacement(
        stage=Stage.PLAN,
        owner=_VARIABLES_MODULE,
        name="should_shard_at_init",
        parameters=("init_layout", "shape"),
        wrapper="lockstep.planning.sharing:computing_once",
        becomes="computes the initial value of a replicated variable once",
        until="JAX has virtual devices without memory of their own",
    ),
)
