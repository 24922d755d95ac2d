"""HTTP client with one deadline and caps for each exchange.

``client`` is what others use.  Below it are ``connection`` and ``session`` (over ``http.client`` and ``requests``),
``response``, ``sockets``, ``tls``, ``resolver``, ``url`` and ``credentials``; ``errors`` names every failure.
"""
