"""Prints what a terminal must not take for commands: control characters are shown, not sent.

Texts, ids, titles and file names are other people's. An escape sequence in one could set the
window's title, clear the screen or hide what was printed. JSON escapes its own and stays exact.
"""

from __future__ import annotations

import logging
import re

import typer

# C0 without tab and line feed, DEL, C1, and what turns the direction of the text around.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text whose control characters are written as \x1b, but for tabs and line ends."""
    return CONTROL.sub(lambda found: _escaped(found[0]), text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    r"""Return a text, such as an id, with its tabs and line ends written as \t and \n too."""
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, its control characters shown."""
    typer.echo(printable(str(text)), err=err, nl=nl)


class LogFormatter(logging.Formatter):
    """Formats messages alone, their control characters shown."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, and the traceback if there is one."""
        return printable(super().format(record))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
