"""Judge a snapshot: ordered findings with evidence and advice, and verdicts.  Pure; nothing here reads a clock."""
