"""The stack without Docker: the demo, Prometheus and Alertmanager from this machine's packages, on loopback.

``make stack`` (``python -m compose.native``) runs it for people; the tests start the same servers by the same code.
"""
