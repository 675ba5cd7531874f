"""The operating system and the interpreter: mappings, futexes, locks, processes, and the errors of poolbridge."""
