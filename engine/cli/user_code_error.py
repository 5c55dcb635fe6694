"""Errors of the user's own code."""


class UserCodeError(Exception):
    """An error of the user's own code: one sentence; its note is the traceback from the user's first line."""
