"""The loop over the database: it schedules jobs, orders gangs, provisions machines and records how jobs end."""
