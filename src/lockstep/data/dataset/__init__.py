"""`lockstep.data.Dataset`: the names and meanings of ``tf.data``, implemented with Grain."""
