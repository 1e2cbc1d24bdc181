"""`lockstep.data.Dataset`: ``tf.data``'s names and meanings over Grain."""
