"""The service's process: its keeper, its systemd unit, its lifecycle lock, and its deaths."""
