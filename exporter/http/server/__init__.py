"""HTTP server for ready bytes.

``listener`` is the event loop, ``connection`` one client, ``request`` one request and its response, ``routes`` which
path gets which response, ``negotiation`` in which format.
"""
