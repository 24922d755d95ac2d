"""The NVIDIA driver, divided by the boundary between two processes.

``worker`` and ``nvml`` run in the worker process, which alone loads the library; ``daemon`` keeps it running and
holds what it sends; ``protocol``, ``calls`` and ``cooldown`` are known to both.
"""
