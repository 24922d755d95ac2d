"""Read GPUs from other exporters' metrics pages: one declaration per exporter in ``tables``, one interpreter."""
