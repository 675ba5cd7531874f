"""What the operating system and Python have us mind."""
