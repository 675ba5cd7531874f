"""The kinds of memory, the mappings of memory in this process, and descriptions of tensors in the memory."""
