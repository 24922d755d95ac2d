"""What we know of cards, under the names, labels, units and rounding of DCGM's exporter; pure.

One table for each dialect (``legacy``, ``modern``), one way to render them (``page``), one reader of the question
(``query``).  Loaded when somebody asks for such a page for the first time: who does not, does not pay for it.
"""
