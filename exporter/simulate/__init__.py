"""A node that does not exist: cards behind pynvml's function names, engines behind real HTTP, one seeded world."""
