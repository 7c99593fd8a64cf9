"""The one error that is meant for the user: its message says the value, the rule and the way out."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user can put right; the command shows the message alone and ends with exit code 2."""
