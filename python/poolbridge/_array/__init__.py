"""Leases as arrays, and arrays that live in leases."""
