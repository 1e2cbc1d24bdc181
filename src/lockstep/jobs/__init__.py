"""Defines jobs as pure data and pure decisions.

The package reads no clock, no file and no network: the service and the command line pass everything in. The one
exception is the packaged machine catalogue.
"""
