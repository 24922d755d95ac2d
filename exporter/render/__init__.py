"""Snapshots rendered as bytes, once for each snapshot and format."""
