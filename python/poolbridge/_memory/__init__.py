"""Maps memory of each kind into this process, and describes the tensors in this memory."""
