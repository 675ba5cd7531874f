"""The Python side of ``poolsvc verify``: a module for each scenario, with what workers in Python do for its checks."""
