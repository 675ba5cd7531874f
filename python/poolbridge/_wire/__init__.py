"""Encodes and decodes the messages of the protocol, and sends and receives them as packets over the socket."""
