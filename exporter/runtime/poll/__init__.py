"""The poll loop of one target: when it is due, what one poll does, what its health is, and who is polled now."""
