"""HTTP: ``client`` for what the daemon reads, ``server`` for what it serves, ``wire`` for the grammar of both."""
