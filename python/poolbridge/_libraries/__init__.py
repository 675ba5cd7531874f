"""Uses leases through array libraries, and fills memory with patterns, for the packages `_verify` and `_bench`."""
