"""Packing: data sets into sharded record files, with a manifest that says what they hold."""
