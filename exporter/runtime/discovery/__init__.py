"""Engines that come and go: what the providers found, merged into one registry of targets."""
