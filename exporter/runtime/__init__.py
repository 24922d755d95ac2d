"""State between two snapshots: poll loops, discovery, assignment, events, costs, and the publisher.

``poll`` is one target's loop and health and who is polled now; ``replica`` and ``gateway`` handle a target's pages;
``discovery`` finds engines; ``assignment`` maps processes to GPUs and replicas; ``gpu_events`` counts XID errors;
``costs`` adds up energy and price; ``diagnosis`` holds findings and verdicts over time.  ``publisher`` composes the
snapshot that all others read; ``app`` joins the parts.
"""
