"""Shardwatch: one process per node that joins GPU telemetry with what the inference engines say."""

__version__ = "0.1.0"
