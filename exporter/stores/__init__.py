"""Read the metrics pages of KV-cache stores: one declaration per store in ``tables``, one interpreter for all."""
