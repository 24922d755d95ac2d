"""What lives on between two pages: who polls what and when, each source's state and past, and the newest snapshot.

``polling`` is one source's loop and health, ``page_poller`` a polled page, ``replica`` and ``gateway`` what is made
of one; ``pollers`` says who is polled now, ``discovery`` and ``book`` who is found, ``events`` which XIDs came,
``placement`` who sits where, ``ledger`` what it costs.  ``publisher`` makes the snapshot that everybody else reads.
"""
