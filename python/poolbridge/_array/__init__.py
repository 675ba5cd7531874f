"""Exports leases as arrays, copies arrays into leases, and finds the lease in which an array lives."""
