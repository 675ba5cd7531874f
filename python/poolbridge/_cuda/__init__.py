"""Calls the CUDA driver, for CUDA device pools through `cuda.core`. Both are loaded when GPU memory is first used."""
