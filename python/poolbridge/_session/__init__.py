"""One connection: its protocol, its leases, and its producers and consumers in channels."""
