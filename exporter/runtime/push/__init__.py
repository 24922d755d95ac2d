"""Pushing: a queue and a thread for each receiver; what is sent is rendered by whoever starts them."""
