"""For `_verify` and `_bench`: code that uses leases through array libraries, and patterns that fill memory."""
