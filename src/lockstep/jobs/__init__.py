"""Jobs as pure data and decisions.

Nothing here reads a clock, a file or a network (but for the packaged machine catalogue): the service and the command
line pass everything in.
"""
