"""Implements a session: its connection to the service, its leases, and its producers and consumers in channels."""
