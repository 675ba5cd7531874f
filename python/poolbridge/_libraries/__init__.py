"""Array libraries that use leases, and the patterns that memory is filled with, for `_verify` and `_bench`."""
