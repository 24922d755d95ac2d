"""Read Prometheus text: whole pages, and only what changed since the page before."""
