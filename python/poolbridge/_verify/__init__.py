"""The Python side of ``poolsvc verify``."""
