"""The HTTP client of the service, for the command line and any other program."""

from lockstep.client.addresses import RunningService, ServiceAddress, find_address, find_service
from lockstep.client.client import Client

__all__ = ["Client", "RunningService", "ServiceAddress", "find_address", "find_service"]
