"""Read NVML: the only package that imports pynvml.  It runs in the worker process alone."""
