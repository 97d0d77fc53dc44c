"""What a person did wrong, and what they should know: one line each."""


class InputError(ValueError):
    """A mistake in what the user gave us. Its message is one line: what is wrong, where, what to do.

    The command line prints the line and exits with code 2; in Python it is a `ValueError`.
    """


class Note(UserWarning):
    """Something unusual but allowed, said once (for example: no row is labelled)."""
