"""Dashboards as code: boards of typed panels over the catalogue's metrics, written as Grafana files; see ``__main__``."""
