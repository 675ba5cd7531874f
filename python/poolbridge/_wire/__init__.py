"""Packets, and what they say."""
