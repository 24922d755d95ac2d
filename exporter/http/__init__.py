"""HTTP: ``client`` makes one bounded exchange, ``server`` answers scrapes."""
