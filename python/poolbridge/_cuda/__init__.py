"""Calls the CUDA driver through `cuda.core` and `cuda.bindings`, which are loaded when GPU memory is first used."""
