"""Array libraries that use leases, and patterns to fill memory with, for `_verify` and `_bench`."""
