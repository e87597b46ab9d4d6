"""The one exception that users see: a line that says what was given and what to do."""


class MeshcapError(ValueError):
    """A mistake in the input (a file, an option, a shape), told in one line.

    The command line prints the message alone and leaves with exit code 2.
    """
