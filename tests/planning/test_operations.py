"""Operations of matrix products and convolutions, checked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from lockstep.planning.operations import matrix_operations


def count(function, *shapes, **options):
    return matrix_operations(jax.make_jaxpr(function)(*[jnp.zeros(shape) for shape in shapes]), **options)


def test_a_dense_net_takes_two_a_weight_and_row_forward_and_twice_that_backward():
    def loss(weights, rows):
        return jnp.mean(jnp.tanh(rows @ weights[0]) @ weights[1])

    gradient = jax.make_jaxpr(jax.value_and_grad(loss))([jnp.zeros((7, 11)), jnp.zeros((11, 3))], jnp.zeros((5, 7)))
    forward = 2 * 5 * 7 * 11 + 2 * 5 * 11 * 3
    weights_gradients, hidden_gradient = forward, 2 * 5 * 11 * 3
    assert matrix_operations(gradient) == forward + weights_gradients + hidden_gradient


def test_a_convolution_takes_its_kernel_for_each_output():
    def convolve(images, kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
        )

    assert count(convolve, (4, 8, 8, 6), (3, 3, 3, 10)) == 2 * (4 * 4 * 4 * 10) * (3 * 3 * 3)


def test_a_loop_counts_as_often_as_it_runs():
    def recur(weights, rows):
        def step(state, _):
            return state @ weights, None

        return jax.lax.scan(step, rows, None, length=50)[0]

    once = 2 * 5 * 7 * 7
    assert count(recur, (7, 7), (5, 7)) == 50 * once
    assert count(recur, (7, 7), (5, 7), loops_once=True) == once


def test_of_several_branches_the_longest_counts():
    def branch(choice, rows):
        return jax.lax.cond(choice.sum() > 0, lambda: rows @ rows, lambda: rows)

    assert count(branch, (1,), (4, 4)) == 2 * 4 * 4 * 4


def test_what_every_device_does_counts_for_each():
    mesh = Mesh(np.array(jax.devices()[:4]), ("batch",))
    spec = PartitionSpec("batch")
    split = jax.shard_map(
        jax.jit(lambda rows, weights: rows @ weights), mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
    )
    assert count(split, (8, 3), (3, 5)) == 2 * 8 * 3 * 5


def test_what_devices_repeat_counts_once():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("batch", "copy"))
    spec = PartitionSpec("batch")
    split = jax.shard_map(
        jax.jit(lambda rows, weights: rows @ weights), mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
    )
    assert count(split, (8, 3), (3, 5)) == 2 * 8 * 3 * 5


def test_what_nothing_reads_does_not_count():
    def function(rows, weights):
        _ = rows @ weights
        return rows

    assert count(function, (8, 3), (3, 5)) == 0
