"""The listening side of HTTP: one event loop (``loop``), one client (``connection``), one request (``http1``)."""
