"""The one kind of error that is told to the user in a line, without a trace."""


class Problem(Exception):
    """Something is missing or went wrong; the text says what, and what was expected."""


class Unavailable(Problem):
    """What is missing cannot be had here: no compiler for the kind."""
