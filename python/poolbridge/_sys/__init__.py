"""Wraps functions of the operating system and the interpreter: file mappings, futexes, locks, and process ids.

This package also has small parts that all packages of poolbridge share: error texts, types of arguments, the logger and
the version.
"""
