"""What users call and hold."""
