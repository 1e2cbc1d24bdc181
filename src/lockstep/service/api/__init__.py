"""The REST interface: the contract's paths and JSON for jobs, models and predictions, and Lockstep's own beside."""

from lockstep.service.api.app import create_app

__all__ = ["create_app"]
