"""Grouped and depthwise convolutions over several devices: right gradients, and no batch that is gathered."""

import math
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from tests.strategies.setups import cpus, sharded

from lockstep.planning.hlo import collectives
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, programs
from lockstep.strategies.grouped_convolutions import num_blocks
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage

KERNELS = {
    "depthwise": (8, 1, 8),
    "depthwise_multiplied": (8, 1, 16),
    "grouped": (8, 4, 8),
    "grouped_to_fewer": (8, 2, 4),
}
"""Channels of the input, of a group, and of the output."""

MESHES = {"each_row_once": (4, 1), "rows_over_two": (2, 2), "all_rows_everywhere": (1, 4)}


@pytest.fixture(autouse=True)
def _registered():
    replace(Stage.BACKEND)


def convolve(x, kernel, *, strides=1):
    return lax.conv_general_dilated(
        x,
        kernel,
        (strides, strides),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1] // kernel.shape[2],
    )


def arrays(name, num_rows):
    generator = np.random.default_rng(0)
    channels, in_group, outputs = KERNELS[name]
    x = generator.normal(size=(num_rows, 9, 9, channels)).astype(np.float32)
    return x, generator.normal(size=(3, 3, in_group, outputs)).astype(np.float32)


def gradients(x, kernel, strides):
    return jax.grad(lambda x, kernel: jnp.sum(jnp.sin(convolve(x, kernel, strides=strides))), (0, 1))(x, kernel)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_program_of_jax_alone(name, mesh, strides):
    x, kernel = arrays(name, 4)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(MESHES[mesh]), ("rows", "copies"))
    laid = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    run = jax.jit(gradients, static_argnums=2)
    found = run(jax.device_put(x, laid[0]), jax.device_put(kernel, laid[1]), strides)
    for one, other in zip(found, run(x, kernel, strides), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_many_kernels_at_once():
    """`jax.vmap` over kernels makes groups of them, and their gradient is one of groups again."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "copies"))
    x, kernel = arrays("grouped", 6)
    kernels = np.stack([kernel, 2 * kernel])
    several = jax.vmap(convolve, (None, 0))
    run = jax.jit(lambda x, kernels: jax.grad(lambda kernels: jnp.sum(jnp.sin(several(x, kernels))))(kernels))
    expected = run(x, kernels)
    laid = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    found = run(jax.device_put(x, laid[0]), jax.device_put(kernels, laid[1]))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_mesh_that_the_caller_has_made_current():
    """Auto or explicit: arrays have the axes of an explicit one in their types."""
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "copies"), axis_types=(kind, kind))
        check_two_layers(jax.set_mesh(mesh), mesh, PartitionSpec("rows"), lambda run: run)


def test_a_shard_map_over_some_axes_of_a_mesh():
    """XLA's partitioner divides over the others, and rows may lie over one of them."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), ("own", "rows", "copies"))

    def mapped(run):
        specs = (PartitionSpec("own"), PartitionSpec())  # gradients of what all hold are summed over this axis
        return jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), axis_names={"own"})

    check_two_layers(nullcontext(), mesh, PartitionSpec(("own", "rows")), mapped)


def check_two_layers(context, mesh, rows, wrap):
    """A depthwise convolution after a grouped one: their gradients over a mesh are those of one device."""
    x, grouped = arrays("grouped", 4)
    kernels = [grouped, arrays("depthwise", 4)[1]]

    def run(x, kernels):
        return jax.grad(lambda kernels: jnp.sum(jnp.sin(convolve(convolve(x, kernels[0]), kernels[1]))))(kernels)

    expected = jax.jit(run)(x, kernels)
    x = jax.device_put(x, NamedSharding(mesh, rows))
    kernels = jax.device_put(kernels, NamedSharding(mesh, PartitionSpec()))
    with context:
        found = jax.jit(wrap(run))(x, kernels)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def compiled_step(strategy, layer, num_rows):
    """Returns the collectives of the step that ``fit`` compiles for a batch of so many rows."""
    seen = []
    with strategy.scope():
        model = keras.Sequential([keras.Input((9, 9, 8)), layer, keras.layers.GlobalAveragePooling2D()])
        model.compile("sgd", "mse")
    with programs.watch(seen.append):
        model.fit(np.zeros((num_rows, 9, 9, 8)), np.zeros((num_rows, 8)), batch_size=num_rows, verbose=0)
    return collectives(seen[0].step.lower(*seen[0].args).compile().as_text())


@pytest.mark.parametrize("num_rows", [8, 6])
def test_no_device_gathers_the_batch(num_rows):
    """Mirrored gains something by it: one sum of all gradients is all that travels."""
    groups = keras.layers.Conv2D(8, 3, groups=4)
    found = compiled_step(MirroredStrategy(cpus(4)), groups, num_rows)
    assert [(one.kind, one.count, one.group_size) for one in found] == [("all-reduce", 1, 4 if num_rows == 8 else 2)]


def test_a_model_that_is_divided_moves_no_more_than_a_dense_one():
    strategy = sharded(4, stage=1, model_parallel=2)
    plain = compiled_step(strategy, keras.layers.Conv2D(8, 3), 8)
    groups = compiled_step(strategy, keras.layers.Conv2D(8, 3, groups=2), 8)
    kinds = [{(one.kind, one.group_size, one.count) for one in found} for found in (groups, plain)]
    assert kinds[0] == kinds[1]


def test_rows_are_divided_as_the_current_layout_divides_a_batch():
    assert num_blocks(12, num_devices=4) == 4
    assert num_blocks(6, num_devices=4) == 2
    assert num_blocks(3, num_devices=4) == 1
    with sharded(4, stage=1, model_parallel=2).scope():
        assert num_blocks(12, num_devices=4) == 2
        assert num_blocks(12, num_devices=3) == 3  # a program of other devices than the layout's


@pytest.mark.parametrize("num_rows", [8, 6, 7])
@pytest.mark.parametrize("dim", [2, 3])
def test_a_gradient_that_is_laid_out_over_the_devices(dim, num_rows):
    """As ZeRO has it; with 7 rows, which all devices hold, XLA's partitioner ended the process."""
    x, kernel = arrays("grouped", num_rows)
    run = jax.jit(lambda x, kernel: gradients(x, kernel, 1)[1])
    expected = run(x, kernel)
    groups = math.gcd(num_rows, 4)
    rows = Mesh(np.array(jax.devices()[:4]).reshape(groups, 4 // groups), ("rows", "copies"))
    laid = PartitionSpec(*[("rows", "copies") if at == dim else None for at in range(4)])
    run = jax.jit(run, out_shardings=NamedSharding(rows, laid))
    found = run(
        jax.device_put(x, NamedSharding(rows, PartitionSpec("rows"))),
        jax.device_put(kernel, NamedSharding(rows, PartitionSpec())),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_one_device_compiles_what_it_compiled_before():
    x, kernel = arrays("grouped", 4)
    text = jax.jit(convolve).lower(x, kernel).as_text()
    assert text.count("stablehlo.convolution") == 1
    assert "manual_computation" not in text


@pytest.mark.parametrize("num_rows", [pytest.param(8, marks=pytest.mark.heavy), 7])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("divides_convolution", [False, True])
def test_images_whose_height_a_layout_map_would_divide(groups, num_rows, divides_convolution):
    """Dense kernels behind `Flatten` that are cut along their inputs: XLA divides the images by height, for them."""
    layout_map = {
        ".*scores/kernel": ("model", None),
        **({".*second/kernel": (None, None, None, "model")} if divides_convolution else {}),
    }
    strategy = sharded(4, stage=1, model_parallel=2, layout_map=layout_map)
    found, expected = (updates_of_images(one, groups, num_rows) for one in (strategy, OneDeviceStrategy("cpu:0")))
    for path, update in expected.items():
        np.testing.assert_allclose(found[path], update, rtol=1e-3, atol=1e-5, err_msg=path)


def updates_of_images(strategy, groups, num_rows):
    """Returns how a step of `fit` changes a model of images, by the paths of variables."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [
            keras.layers.Conv2D(8, 3, padding="same", groups=groups, activation="tanh", name="first"),
            keras.layers.Conv2D(6, 3, padding="same", activation="tanh", name="second"),
        ]
        ends = [keras.layers.Flatten(), keras.layers.Dense(4, name="scores")]
        model = keras.Sequential([keras.Input((8, 8, 4)), *layers, *ends])
        model.compile(keras.optimizers.SGD(0.5), "mse")
    before = {variable.path: np.array(variable.value) for variable in model.variables}
    generator = np.random.default_rng(0)
    images, targets = generator.normal(size=(num_rows, 8, 8, 4)), generator.normal(size=(num_rows, 4))
    model.fit(images, targets, batch_size=num_rows, shuffle=False, verbose="0")
    return {variable.path: np.array(variable.value) - before[variable.path] for variable in model.variables}


@pytest.mark.parametrize("num_rows", [8, 6])
@pytest.mark.parametrize("way", ["one_image_of_all_rows", "rows_are_height"])
def test_rows_that_become_height(way, num_rows):
    """A convolution over the rows themselves, which lie over some of the devices."""
    layout = MirroredStrategy(cpus(4)).layout
    x, kernel = arrays("grouped", num_rows)
    kernel = np.repeat(kernel, 2, axis=2)  # of one group

    def gradient(x, kernel):
        x = x[None, :, 0] if way == "one_image_of_all_rows" else jnp.swapaxes(x, 0, 1)
        return jax.grad(lambda kernel: jnp.sum(jnp.sin(convolve(x, kernel))))(kernel)

    expected = jax.jit(gradient)(x, kernel)
    with layout.scope():
        kernel = jax.device_put(kernel, layout.replicated)
        found = jax.jit(gradient)(layout.place(x), kernel)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
