"""What the command line turns into a message: bad input, and a check that failed."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave cannot be used; the command line prints it and exits with 2.

    `problem` names the value and its limit, `where` is `file:line` or an option's name, `fix` is
    the way out. The message is `where: problem. fix`.
    """

    def __init__(self, problem: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.problem = problem
        self.where = where
        self.fix = fix
        text = f"{where}: {problem}" if where else problem
        super().__init__(f"{text}. {fix}" if fix else text)


class CheckFailedError(AssertionError):
    """A device computed something else than the reference; the command line exits with 1."""
