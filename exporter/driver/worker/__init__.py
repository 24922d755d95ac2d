"""The worker process: one thread per GPU, one for events, one for topology."""
