"""The node web page: one snapshot as a page for people, in HTML and as plain text.

``history`` keeps ten minutes of curves, ``model`` is what a page consists of, ``page`` builds it from a snapshot with
``tables``, ``html`` and ``plain`` write it, ``assets`` holds the style sheet and the script.
"""
