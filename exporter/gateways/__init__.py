"""Read the metrics pages of gateways: one declaration per gateway in ``tables``, one interpreter for all."""
