"""Errors of the stack that users can fix."""

from __future__ import annotations


class StackError(Exception):
    """One or more things are wrong; the message has a line for each, with what to do about it."""
