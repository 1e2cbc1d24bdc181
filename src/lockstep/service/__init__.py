"""The managed job service: its database, its controller, its REST interface."""
