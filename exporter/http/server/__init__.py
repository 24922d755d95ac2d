"""Ready bytes over HTTP.

``server`` says which path answers what, ``loop`` is the event loop, ``connection`` one client, ``http1`` one request.
"""
