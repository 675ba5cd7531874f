"""Memory of each kind, which a process maps once, and descriptions of the tensors in it."""
