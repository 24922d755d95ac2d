"""Grafana dashboards as code: typed panels over the catalogue's metrics, generated as JSON; see ``__main__``."""
