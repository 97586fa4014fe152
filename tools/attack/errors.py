"""How an attack ends when it does not end well."""


class Hung(Exception):
    """Nothing came within a generous time-out."""


class Gone(Exception):
    """The other side closed the connection."""


class Refused(Exception):
    """The server answered a request with an error."""


class Died(Exception):
    """A server ended that should have gone on serving."""


class LeftOut(Exception):
    """This machine cannot do it; the reason is the text."""
