"""The daemon's side of the driver: supervise the worker process and keep what it sends."""
