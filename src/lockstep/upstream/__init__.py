"""Access to private parts of Keras and JAX. Only this room imports, reads or replaces them.

The other rooms use public interfaces, or functions of this room. So changes in a new release of Keras or JAX concern
only this room. `table` lists every function of Keras and JAX that Lockstep replaces, and `replacing` checks all of them
before it replaces any.
"""
