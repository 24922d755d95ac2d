"""The exit codes of every command."""

OK, FAILED, BAD_USAGE = 0, 1, 2
# ``check`` ends with the codes of monitoring plugins, in which 1 and 2 are findings.
UNKNOWN = 3
