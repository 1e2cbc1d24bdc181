"""The controller, which schedules jobs, orders gangs, provisions machines and records how jobs end."""
