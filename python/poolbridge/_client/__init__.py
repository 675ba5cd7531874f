"""What users call and state."""
