"""One connection, what it knows and who takes part in its channels."""
