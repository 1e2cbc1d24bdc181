"""The course's labs on mirrored and multi-GPU training: their structure, told anew, as it stood in tf.keras."""

import os

import numpy as np
import tensorflow as tf

os.environ["TF_MIN_GPU_MULTIPROCESSOR_COUNT"] = "4"
strategy = tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.ReductionToOneDevice())
print("Number of devices: {}".format(strategy.num_replicas_in_sync))

rng = np.random.default_rng(21)
x_train = rng.random((80, 7)).astype("float32")
y_train = (x_train.sum(axis=1) > 3.5).astype("int32")

BUFFER_SIZE = len(x_train)
BATCH_SIZE_PER_REPLICA = 16
GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync
EPOCHS = 3
train_dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(GLOBAL_BATCH_SIZE)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)


class MyModel(tf.keras.Model):
    def __init__(self):
        super(MyModel, self).__init__()
        self.hidden = tf.keras.layers.Dense(5, activation="relu")
        self.out = tf.keras.layers.Dense(2)

    def call(self, x):
        return self.out(self.hidden(x))


with strategy.scope():
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )

    def compute_loss(labels, predictions):
        per_example_loss = loss_object(labels, predictions)
        print_shape = tf.shape(per_example_loss)
        return tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)

    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    optimizer = tf.keras.optimizers.legacy.SGD(lr=0.5)
    model = MyModel()
    model(tf.zeros((1, 7)))
    first = np.random.default_rng(0)
    model.set_weights([first.normal(0, 0.3, weight.shape).astype("float32") for weight in model.get_weights()])


@tf.function
def distributed_train_step(dataset_inputs):
    per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
    tf.print("a step of", strategy.num_replicas_in_sync)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions)
    optimizer.minimize(loss, model.trainable_variables, tape=tape)
    train_accuracy.update_state(labels, predictions)
    return loss


for epoch in range(EPOCHS):
    total_loss = 0.0
    num_batches = 0
    for batch in train_dist_dataset:
        total_loss += distributed_train_step(batch)
        num_batches += 1
    template = "loss {:.6f} accuracy {:.6f}"
    print(template.format(total_loss.numpy() / num_batches, train_accuracy.result().numpy()))
    train_accuracy.reset_states()
