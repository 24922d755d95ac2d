"""The exit codes of every command."""

OK, FAILED, BAD_USAGE = 0, 1, 2
