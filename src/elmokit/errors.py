"""The exceptions for a user's mistake; the command line turns them into a sentence and exit status 2."""


class ElmoError(ValueError):
    """A mistake in what elmokit was given: a file, an option or a text.

    The message is one sentence that states the rule, the value it got and the next step. `arguments` are the names of
    Python arguments in it; the command line shows the option of each instead.
    """

    def __init__(self, message: str = "", *arguments: str) -> None:
        super().__init__(message)
        self.arguments = arguments


class DamagedFileError(ElmoError):
    """A file that is cut short, has wrong bytes or is malicious; downloading it again may help."""


class MissingExtraError(ElmoError, ImportError):
    """An optional package is not installed; the message names the pip command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'elmokit[{extra}]'")
