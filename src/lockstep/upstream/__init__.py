"""The private parts of Keras and JAX: the only room that imports them, reads them or replaces them.

Everything else in the package uses public interfaces, or a function of this room. So a new release of Keras or JAX is
met here: `table` lists every function of theirs that Lockstep replaces, and `replacing` checks all of them before it
replaces any.
"""
