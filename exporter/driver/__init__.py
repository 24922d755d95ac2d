"""The NVIDIA driver: what runs in the worker process (nvml*, card_thread, worker) and what keeps watch over it."""
