"""Communication between the processes of a cluster: requests and answers with arrays, over ZeroMQ or shared memory."""

from lockstep.parameter_server.links.client import Link
from lockstep.parameter_server.links.frames import Message
from lockstep.parameter_server.links.listener import Listener, Peer, Request

__all__ = ["Link", "Listener", "Message", "Peer", "Request"]
