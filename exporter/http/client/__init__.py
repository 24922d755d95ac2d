"""The only way out over HTTP: one bounded exchange with an engine (``exchange``), and what it is made of."""
