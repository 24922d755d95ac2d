"""One file per engine: how its process and its page are recognised, and what its metrics mean."""
