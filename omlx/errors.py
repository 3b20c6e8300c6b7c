"""A *user error* is one whose text is a sentence for whoever runs the command: it is shown without a traceback."""


class UserError(Exception):
    """`str()` says what is wrong and what to do."""
