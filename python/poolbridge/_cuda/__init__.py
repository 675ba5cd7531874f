"""The driver, by `cuda.core` and `cuda.bindings`, which are loaded when memory of a GPU is first used."""
