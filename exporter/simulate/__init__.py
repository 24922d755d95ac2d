"""A simulated node: GPUs behind pynvml's function names, engines behind real HTTP, one seeded world."""
