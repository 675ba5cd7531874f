"""Orders the work of processes on shared memory: timelines, fences, promises and events."""
