"""Prints for people: hits, tables that fit, errors, and no control characters a terminal obeys."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from sluice.encoders.foundation.progress import on_terminal
from sluice.retrieval.documents.text import best_part, matches
from sluice.retrieval.evaluation.table import Table

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.hit import Hit


# C0 without tab and line feed, DEL, C1, and what turns the direction of the text around.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text whose control characters are written as \x1b, but for tabs and line ends."""
    return CONTROL.sub(lambda match: _escaped(match[0]), text.replace("\r\n", "\n"))


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


INDENT = "  "
HIT_INDENT = "     "  # of lines below a hit
WIDEST = 100  # columns of an error on a wide terminal
RED, PLAIN = "\033[31m", "\033[0m"

# The parser's messages, and what is written in their place.
USAGE = (
    (r"Missing (?:argument|option) '(.+)'\.", r"\1 is missing"),
    (r"Invalid value for '(.+?)'(?: / '.+?')?: (.+)", r"\1: \2"),
    (r"No such command '(.+?)'\.(?: Did you mean (.+)\?)?", r"no such verb: \1; did you mean \2?"),
    (r"No such option: (\S+?)\.?(?: (?:Did you mean|\(Possible options:) (.+?)[?)])?",
     r"no such option: \1; did you mean \2?"),
    (r"Option '(.+)' requires an argument\.", r"\1 needs a value"),
    (r"Got unexpected extra argument(?:s|\(s\))? \((.+)\)",
     r"too many words: \1; a text of several words goes in quotes"),
)  # fmt: skip
VALUES = (
    (r"Input should be a valid integer\b.*", "expected a whole number"),
    (r"Input should be a valid number\b.*", "expected a number"),
    (r"Input should be greater than or equal to (\S+)", r"expected \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"expected \1 or less"),
    (r"'?(.*?)'? is not a valid int(?:eger)?\.", r"\1; expected a whole number"),
    (r"'?(.*?)'? is not a valid float\.", r"\1; expected a number"),
    (r"(\S+) is not in the range x>=(\S+?)\.", r"\1; expected \2 or more"),
)
SPACE, YOURS = "free some space, or choose a folder on another disk", "choose a folder or file"
REMEDIES = {
    errno.ENOSPC: SPACE,
    errno.EDQUOT: SPACE,
    errno.EFBIG: "raise the limit for the size of files (ulimit -f)",
    errno.EACCES: f"{YOURS} that you may use",
    errno.EPERM: f"{YOURS} that you may use",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOENT: f"{YOURS} that exists, or a place where it can be made",
    errno.ENOTDIR: "choose a place that is not below a file",
}


def say(text: str) -> None:
    """Print a text, its lines broken at spaces to fit the terminal."""
    echo(
        "\n".join(
            line
            for part in text.split("\n")
            for line in textwrap.wrap(
                part, columns(), break_long_words=False, break_on_hyphens=False
            )
            or [""]
        )
    )


def columns() -> int:
    """Return the terminal's width: $COLUMNS, else what it says, else 80."""
    return max(shutil.get_terminal_size().columns, 40)


def write_error(message: str) -> None:
    """Write an error to stderr: red on a terminal that has colours, and as wide as it is."""
    terminal = on_terminal()
    width = min(columns(), WIDEST) if terminal else None
    text = printable(shown(message, width))
    if terminal and not os.environ.get("NO_COLOR"):
        text = text.replace("error:", f"{RED}error:{PLAIN}", 1)
    sys.stderr.write(text + "\n")


def shown(message: str, width: int | None = None) -> str:
    """Return an error as lines: what is wrong, then details, and the remedy last.

    The clauses of a message, which semicolons separate, go to lines of their own; what was
    expected stands beside what was found where there is room. None as
    ``width`` breaks no line, so that programs find each clause whole.
    """
    first, *others = [part for line in message.splitlines() for part in clauses(line)] or [""]
    if others and others[0].startswith("expected") and len(first + others[0]) <= WIDEST - 10:
        first = f"{first}; {others.pop(0)}"
    lines = [f"error: {first}", *(INDENT + other for other in others)]
    if width is not None:
        lines = [
            part
            for line in lines
            for part in textwrap.wrap(
                line, max(width, 20), subsequent_indent=2 * INDENT, drop_whitespace=True,
                break_long_words=False, break_on_hyphens=False,
            )
        ]  # fmt: skip
    return "\n".join(lines)


def clauses(text: str) -> Iterator[str]:
    """Yield the parts of a message between semicolons; those in quotes or brackets separate none.

    An apostrophe within or after a word opens no quote.
    """
    quote, depth, start = "", 0, 0
    for place, char in enumerate(text):
        before, after = text[place - 1 : place], text[place + 1 : place + 2]
        if quote:
            if char == quote and not after.isalnum():
                quote = ""
        elif char in "'\"`" and not before.isalnum() and text.find(char, place + 1) > 0:
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(depth - 1, 0)
        elif char == ";" and after == " " and not depth:
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()


def usage_message(error: Any) -> str:
    """Return what a usage error of the parser means, the usage, and the remedy if one is known."""
    text = str(error.format_message()).strip()
    for pattern, reply in USAGE:
        match = re.fullmatch(pattern, text, flags=re.DOTALL)
        if match is not None:
            text = match.expand(reply).replace("; did you mean ?", "")
            break
    head, colon, value = text.partition(": ")
    for pattern, reply in VALUES:
        value = re.sub(rf"^{pattern}$", reply, value)
    text = f"{head}{colon}{value}".replace("'", "").rstrip(".")
    first, *others = clauses(text)
    context = getattr(error, "ctx", None)
    if context is not None:
        usage = context.command.get_usage(context).removeprefix("Usage: ")
        first += f"\nusage: {' '.join(usage.split())} (help: {context.command_path} -h)"
    remedy = getattr(error, "remedy", None)
    return "\n".join([first, *([remedy] if remedy else others)])


def disk_message(error: Exception) -> str | None:
    """Return what a library says that could not write (safetensors, faiss, torch); else None."""
    text = str(error)
    if number := re.search(r"\(os error (\d+)\)", text):
        return os_message(OSError(int(number[1]), os.strerror(int(number[1]))))
    if place := re.search(r"write error in (.+?): [^()]*\((.+)\)", text):
        return _advised(f"{place[1]}: {place[2]}", errno.ENOSPC)
    if re.search(r"inline_container\.cc|PytorchStreamWriter|iostream error", text):
        return _advised("a checkpoint was not written in full", errno.ENOSPC)
    return None


def os_message(error: OSError) -> str:
    """Return what the system refused, the file first; with a remedy, also what remains."""
    text = f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
    return _advised(text, error.errno or 0)


def _advised(text: str, number: int) -> str:
    unchanged = "what was complete before is unchanged"
    remedy = REMEDIES.get(number)
    return f"{text}; {unchanged}; {remedy}, and run the command again" if remedy else text


LENGTH = 240  # characters of a document that are shown
PASSAGE_LENGTH = 480  # of a passage, which is the answer


def print_hits(
    hits: Sequence[Hit], query: str, *, as_json: bool = False, several: bool = False
) -> None:
    """Print hits, best first: as JSON lines with everything, or the words around the query's.

    Code is named by its path and line, as editors and terminals follow them.
    With ``several`` queries each is named with its hits.
    """
    if as_json:
        facts = {"query": query} if several else {}
        for hit in hits:
            typer.echo(json.dumps({**facts, **hit.as_dict()}, ensure_ascii=False))
        return
    from sluice.retrieval.documents.readers.code.folder import line_of

    if several:
        echo(f"> {query}")
    for rank, hit in enumerate(hits, 1):
        title = f"  {' '.join(hit.title.split())}" if hit.title.strip() else ""
        name = line_of(hit.metadata) or hit.doc_id
        echo(f"{rank:>3}  {hit.score:9.4f}  {one_line(name)}{title}")
        text, length = hit.text, LENGTH
        if hit.passage is not None:
            number, start, end, text = hit.passage
            length = PASSAGE_LENGTH
            if (start, end) != (0, len(hit.text)):
                echo(f"{HIT_INDENT}passage {number}, characters {start:,} to {end:,}")
        if text.strip():
            # As it is: the words in bold are terminal sequences of our own.
            typer.echo(f"{HIT_INDENT}{snippet(text, query, length, mark=True)}")
    if not hits:
        echo("no hits")


def snippet(text: str, query: str, length: int = LENGTH, *, mark: bool = False) -> str:
    """Return the part of a text, at most ``length`` characters, with most words of the query.

    White space is one space, no word is cut, and ``...`` stands for what is left out. English word
    forms match each other. Without any word of the query it is the beginning. ``mark`` prints the
    words in bold on a terminal. Control characters are shown.
    """
    line = printable(" ".join(text.split()))
    places = matches(line, query)
    first, last = best_part(line, places, length)
    parts, done = [], first
    for start, end, _ in places if mark else ():
        if max(first, done) <= start and end <= last:
            parts += [line[done:start], typer.style(line[start:end], bold=True)]
            done = end
    parts.append(line[done:last])
    return ("... " if first else "") + "".join(parts) + (" ..." if last < len(line) else "")


# Columns that a narrow terminal leaves out, the first ones first; further measures go between.
BEFORE = ("bytes/doc", "indexed docs/s", "peak MB", "p99 ms", "queries/s", "resident MB")
AFTER = ("p50 ms", "index MB", "p95 ms")
MEASURES = 2  # shown of a table that does not fit
MEASURE_FORM = ".4f"  # how Table writes measures


def show(table: Table) -> list[str]:
    """Print a table that fits the terminal; return the columns that it leaves out."""
    text, left_out = fitted(table, columns())
    echo(text)
    return left_out


def fitted(table: Table, width: int) -> tuple[str, list[str]]:
    """Return a table as text at most ``width`` columns wide, and the columns it leaves out.

    Costs are left out before measures, and two measures stay. What is still too wide is
    written below, as further columns of the same systems.
    """
    dropped: list[str] = []
    for column in _droppable(table):
        if _width(table, dropped) <= width:
            break
        dropped.append(column)
    shown = [column for column in table.columns if column not in dropped]
    blocks = _blocks(table, shown, width)
    text = "\n\n".join(str(_part(table, block)) for block in blocks)
    left_out = [column for column in table.columns if column in dropped]
    if table.caption:
        text += "\n" + "\n".join(textwrap.wrap(table.caption, width, break_on_hyphens=False))
    return text, left_out


def _droppable(table: Table) -> list[str]:
    measures = [name for name, form in table.columns.items() if form == MEASURE_FORM]
    costs = [*BEFORE, *AFTER]
    if not any(column in costs for column in table.columns):
        return []  # not a table of systems and costs: all of it is shown
    order = [*BEFORE, *reversed(measures[MEASURES:]), *AFTER]
    return [column for column in order if column in table.columns]


def _width(table: Table, dropped: Collection[str]) -> int:
    shown = [column for column in table.columns if column not in dropped]
    return _widest(_part(table, shown))


def _widest(table: Table) -> int:
    return max(map(len, str(table).splitlines()))


def _part(table: Table, columns: Collection[str]) -> Table:
    """Return a table of some of the columns, without the caption."""
    forms = {name: form for name, form in table.columns.items() if name in columns}
    marks = {place: mark for place, mark in table.marks.items() if place[1] in forms}
    return Table(forms, table.rows, marks, heading=table.heading)


def _blocks(table: Table, columns: list[str], width: int) -> list[list[str]]:
    """Return the columns in groups that fit, at least one column in each."""
    blocks: list[list[str]] = [[]]
    for column in columns:
        if blocks[-1] and _widest(_part(table, [*blocks[-1], column])) > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks
