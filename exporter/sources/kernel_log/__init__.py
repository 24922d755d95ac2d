"""The kernel's own log, which names errors of GPUs that the driver's events leave out."""
