"""The HTTP client of the service: what the command line, and any program, talks through."""

from lockstep.client.addresses import RunningService, ServiceAddress, find_address, find_service
from lockstep.client.client import Client

__all__ = ["Client", "RunningService", "ServiceAddress", "find_address", "find_service"]
