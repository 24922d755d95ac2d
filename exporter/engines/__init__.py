"""Read the metrics pages of inference engines: one declaration per engine in ``tables``, one interpreter for all."""
