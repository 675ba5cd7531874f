"""Orders the work of several processes on shared memory, by means of timelines, fences, promises and events."""
