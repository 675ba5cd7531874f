"""Which work must be done before which."""
