"""Memory of each kind, mapped once in a process, and what is in it."""
