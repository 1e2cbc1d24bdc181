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
        effect: what the function does after the replacement.
        removable_when: the change of Keras or JAX that would make the row unnecessary.
        is_cached: for a primitive, whether JAX may lower equal uses of it once. False if the rule looks at what its
            operands come from.
        is_required: False if the replacement only saves time. With a version of Keras or JAX that lacks the function,
            Lockstep then warns, and goes on without the replacement.
    """

    stage: Stage
    owner: str
    name: str
    parameters: tuple[str, ...]
    wrapper: str
    effect: str
    removable_when: str
    is_cached: bool = True
    is_required: bool = True

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
        wrapper=f"{_FITTING}:wrap_run",
        effect="enters the strategy that the model was compiled under, and checks the arguments",
        removable_when=_HOOK,
    )


def _makes(kind: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name=f"make_{kind}_function",
        parameters=("self", "force"),
        wrapper=f"{_FITTING}:wrap_make_{kind}_function",
        effect="creates the strategy's own step function",
        removable_when=f"Keras takes `{kind}_function` from the distribution",
    )


def _steps(kind: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name=f"{kind}_step",
        parameters=("self", "state", "data"),
        wrapper="lockstep.strategies.keras_steps:wrap_step",
        effect=f"also accepts a batch alone: `super().{kind}_step(data)`",
        removable_when="Keras's JAX trainer accepts such steps",
    )


def _applies(owner: str, name: str, parameters: tuple[str, ...], wrapper: str, effect: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner=owner,
        name=name,
        parameters=("self", *parameters),
        wrapper=f"{_UPDATES}:{wrapper}",
        effect=effect,
        removable_when=_GRADIENTS,
    )


def _optimizes(owner: str) -> tuple[Replacement, ...]:
    return (
        _applies(owner, "apply", ("grads", "trainable_variables"), "wrap_apply", "sums gradients, or defers updates"),
        _applies(owner, "build", (), "wrap_build", "records the optimizer, and checks a layout map's patterns"),
    )


def _lowers(
    name: str, wrapper: str, effect: str, removable_when: str, *, is_cached: bool = True, is_required: bool = False
) -> Replacement:
    return Replacement(
        stage=Stage.BACKEND,
        owner="lowering",
        name=name,
        parameters=(),
        wrapper=wrapper,
        effect=effect,
        removable_when=removable_when,
        is_cached=is_cached,
        is_required=is_required,
    )


def _ends_batches(kind: str) -> Replacement:
    return Replacement(
        stage=Stage.STRATEGY,
        owner="keras.callbacks:CallbackList",
        name=f"on_{kind}_batch_end",
        parameters=("self", "batch"),
        wrapper="lockstep.strategies.callback_lists:wrap_batch_end",
        effect="does not read logs from the devices that no callback asks for",
        removable_when="Keras calls only the callbacks that have the method",
        is_required=False,
    )


REPLACEMENTS: Final[tuple[Replacement, ...]] = (
    Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name="compile",
        parameters=("self",),
        wrapper=f"{_FITTING}:wrap_compile",
        effect="records the current strategy",
        removable_when=_HOOK,
    ),
    *(_runs(name) for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")),
    *(_makes(kind) for kind in ("train", "test", "predict")),
    *(_steps(kind) for kind in ("train", "test", "predict")),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_MODEL,
        name="_symbolic_build",
        parameters=("self", "data_batch"),
        wrapper=f"{_FITTING}:wrap_symbolic_build",
        effect="builds a model by its step if the step takes a batch alone, because `call` may not fit the data",
        removable_when="Keras builds a model by its own step",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_TRAINER,
        name="_distribute_data",
        parameters=("data",),
        wrapper=f"{_FITTING}:wrap_distribute_data",
        effect="places a batch with any number of rows, which each process may hold whole",
        removable_when="`Distribution` places batches itself",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_TRAINER,
        name="JAXEpochIterator",
        parameters=("_get_iterator", "_enumerate_iterator", "_interrupted_warning"),
        wrapper="lockstep.strategies.epochs:wrap_epoch_iterator",
        effect="places each batch by its own number of rows, starts within an epoch, restarts data that ends",
        removable_when="Keras places each batch by its own number of rows (3.16 does), and can start within an epoch",
    ),
    *(_ends_batches(kind) for kind in ("train", "test", "predict")),
    *_optimizes(_OPTIMIZER),
    *_optimizes(_SCALED),
    _applies(
        _SCALED,
        "stateless_apply",
        ("optimizer_variables", "grads", "trainable_variables"),
        "wrap_stateless_apply",
        "sums gradients, or defers updates; for other optimizers, `stateless_apply` calls `apply`, which does so",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_OPTIMIZER,
        name="add_variable",
        parameters=("self", "shape", "layout"),
        wrapper=f"{_SHARDING}:wrap_add_variable",
        effect="divides an optimizer's variables as `ShardedStrategy` specifies",
        removable_when="Keras passes the parameter when it asks `Distribution` for an optimizer variable's layout",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:Layer",
        name="stateless_call",
        parameters=("self", "trainable_variables", "non_trainable_variables"),
        wrapper=f"{_SHARDING}:wrap_stateless_call",
        effect="gathers divided parameters for use",
        removable_when="`Distribution` distinguishes a variable's layout in use from its layout at rest",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras.src.backend.common.remat",
        name="remat",
        parameters=("f",),
        wrapper="lockstep.strategies.rematerialisation:wrap_remat",
        effect="`keras.RematScope` takes layers that draw random numbers or keep statistics",
        removable_when="Keras passes the state of such layers through `jax.checkpoint`",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras.random:SeedGenerator",
        name="next",
        parameters=("self", "ordered"),
        wrapper=f"{_LAYERS}:wrap_seed_next",
        effect="draws different random numbers on each replica",
        removable_when=_REPLICAS,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_NORMALIZATION,
        name="__init__",
        parameters=("self", "synchronized"),
        wrapper=f"{_LAYERS}:wrap_normalization_init",
        effect="accepts `synchronized=True`, which Keras rejects on JAX",
        removable_when=_REPLICAS,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner=_NORMALIZATION,
        name="_moments",
        parameters=("self", "inputs", "mask"),
        wrapper=f"{_LAYERS}:wrap_moments",
        effect="computes synchronized moments over all replicas",
        removable_when=_REPLICAS,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras.layers:RNN",
        name="inner_loop",
        parameters=("self", "sequences", "initial_state", "mask", "training"),
        wrapper="lockstep.strategies.lstm:wrap_inner_loop",
        effect="without cuDNN: runs an LSTM's steps with one product each, and computes its kernels' gradients in one",
        removable_when="Keras has such a loop on JAX",
        is_required=False,
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:Variable",
        name="assign",
        parameters=("self", "value"),
        wrapper="lockstep.strategies.assigning:wrap_assign",
        effect="copies another variable's value, because compiled steps donate buffers",
        removable_when="`Variable.assign` copies, as TensorFlow's does",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:Variable",
        name="_direct_assign",
        parameters=("self", "value"),
        wrapper="lockstep.strategies.peers.agreement:wrap_direct_assign",
        effect="places a value on the devices of several processes without a collective, once they agree on it",
        removable_when="JAX places a value on the devices of several processes without gathering it from all of them",
    ),
    Replacement(
        stage=Stage.STRATEGY,
        owner="keras:StatelessScope",
        name="get_current_value",
        parameters=("self", "variable"),
        wrapper="lockstep.strategies.loops.lifting:wrap_get_current_value",
        effect="looks up missing values in the enclosing scopes",
        removable_when="Keras's stateless scopes can be nested",
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
        "transpose_p",
        f"{_XLA_CPU}:lowering_transposed_products",
        "exchanges the operands of a weight gradient on CPUs, because XLA does not merge its transpose across devices",
        "JAX writes weight gradients without a transpose, or XLA merges a transpose with the product behind a sum",
        is_cached=False,
    ),
    _lowers(
        "conv_general_dilated_p",
        "lockstep.strategies.grouped_convolutions:lower_convolution_by_rows",
        "divides grouped convolutions and kernels' gradients by rows, because XLA's partitioner divides them wrongly; "
        "computes depthwise convolutions on CPUs as sums of products, because XLA runs them as scalar loops",
        "https://github.com/openxla/xla/issues/47945 and the partitioner's sum over copies are fixed, and XLA has a "
        "kernel for depthwise convolutions on CPUs",
        is_required=True,
    ),
    Replacement(
        stage=Stage.MEETING,
        owner="jax._src.lib:_jax",
        name="make_gloo_tcp_collectives",
        parameters=(),
        wrapper="lockstep.upstream.jax_processes:wrap_make_collectives",
        effect="makes collectives on CPUs listen at the address by which the processes have met",
        removable_when="`jax.distributed.initialize` accepts the address",
    ),
    Replacement(
        stage=Stage.PLAN,
        owner="keras.src.backend.jax.distribution_lib",
        name="distribute_tensor",
        parameters=("tensor", "layout"),
        wrapper="lockstep.planning.sharing:wrap_distribute_tensor",
        effect="makes all copies of a replicated array share one host buffer",
        removable_when="JAX has virtual devices without memory of their own",
    ),
    Replacement(
        stage=Stage.PLAN,
        owner="keras:Variable",
        name="_initialize_with_initializer",
        parameters=("self", "initializer"),
        wrapper="lockstep.planning.sharing:wrap_initialize_with_initializer",
        effect="gives a large variable zeros that take no memory",
        removable_when="Keras can build a model without values",
    ),
    Replacement(
        stage=Stage.PLAN,
        owner=_VARIABLES_MODULE,
        name="should_shard_at_init",
        parameters=("init_layout", "shape"),
        wrapper="lockstep.planning.sharing:wrap_should_shard_at_init",
        effect="computes the initial value of a replicated variable once",
        removable_when="JAX has virtual devices without memory of their own",
    ),
)
