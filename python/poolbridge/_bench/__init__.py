"""The Python side of ``poolsvc bench``."""
