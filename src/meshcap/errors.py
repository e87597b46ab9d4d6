"""The exceptions that users see: a line that says what was given and what to do."""


class MeshcapError(ValueError):
    """A mistake in the input (a file, an option, a shape), in one line.

    The command line prints the message alone and leaves with its exit code.
    """

    exit_code = 2


class FailedError(MeshcapError):
    """The work itself failed, and nobody misused anything."""

    exit_code = 1


class TooLargeError(MeshcapError):
    """More than the limits allow: bytes, pixels, or work."""
