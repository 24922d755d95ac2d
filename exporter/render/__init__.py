"""Snapshots made into pages: ready bytes, once for each edition."""
