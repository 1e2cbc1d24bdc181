"""One file a transport: a server that answers exchanges of buffers, and a client that makes them."""
