"""Packing: writes data sets as sharded record files, with manifests that describe their contents."""
