"""The command line, with one file per command, on top of `lockstep.client`."""
