"""GPU metrics under the names, labels, units and rounding of DCGM's exporter; pure.

One table for each dialect (``legacy``, ``modern``), one renderer (``page``), one parser of the query string
(``query``).  Imported with the first request.
"""
