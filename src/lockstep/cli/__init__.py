"""The command line: one file a verb, on top of `lockstep.client`."""
