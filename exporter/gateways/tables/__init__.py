"""One file per gateway: how its page is recognised, and what its metrics mean."""
