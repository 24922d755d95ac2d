"""Alerts as code: rules built from the catalogue's metrics, written as Prometheus rule files; see ``__main__``."""
