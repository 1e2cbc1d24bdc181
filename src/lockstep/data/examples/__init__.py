"""``tf.train.Example``: encoded, decoded, and parsed batch by batch into the arrays that features describe."""
