"""Defines the clients, and the public objects that they return: leases, channels, subscriptions and publishers."""
