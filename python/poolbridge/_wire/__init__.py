"""Packets and messages of the protocol, and the socket."""
