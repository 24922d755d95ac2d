"""Many nodes: target files, a simulation of a thousand, and what each costs.

``python -m compose.fleet serve`` answers as many nodes from one process; ``measure`` lets real servers scrape them.
What came out, and what it means for 1,000 and 10,000 nodes, stands in ``compose/FLEET.md``.
"""
