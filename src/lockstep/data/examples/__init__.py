"""``tf.train.Example``: encoding, decoding, and parsing batches of records into the arrays that features describe."""
