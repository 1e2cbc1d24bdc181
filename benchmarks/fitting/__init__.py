"""Training by `fit` and by loops of one's own, on a processor: the sides of ``fit.py``."""
