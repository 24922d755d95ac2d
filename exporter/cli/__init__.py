"""The command line: what can be typed, with all its help, and what each command does."""
