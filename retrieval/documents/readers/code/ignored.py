"""Tells which files of a folder its ``.gitignore`` files leave out, as git does."""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

LONGEST = 1 << 20  # bytes read of one file of patterns
Component = re.Pattern[str] | None  # None: ``**``, any number of folders


class Rule(NamedTuple):
    """One line of a file of patterns."""

    components: tuple[Component, ...]
    negated: bool
    folders_only: bool


class GitIgnore:
    """The patterns of ``.gitignore`` files from the top of the repository down.

    They are those of gitignore(5): deeper files and later lines come first, ``!`` takes a file back
    in, a slash ties a pattern to its folder, ``**`` stands for any folders. ``.git/info/exclude``
    counts; the user's own settings do not, nor what git tracks all the same. Without a repository
    the folder itself is the top. Names are compared byte by byte and component by component, each
    by a regular expression that never goes back: no pattern takes more than quadratic time.
    """

    def __init__(self, root: Path) -> None:
        root = Path(os.path.abspath(root))  # noqa: PTH100  (`..` without links)
        above = (root, *root.parents)
        self._top = next((each for each in above if (each / ".git").exists()), root)
        self._rules = cache(self._read)
        self.count = 0

    def _read(self, below: tuple[str, ...]) -> list[Rule]:
        rules = rules_of(self._top.joinpath(*below, ".gitignore"))
        return rules if below else rules_of(self._top / ".git" / "info" / "exclude") + rules

    def ignores(self, path: Path, *, folder: bool) -> bool:
        """Return whether a path below the root is left out, and count it then.

        Of what lies in a folder that is left out nobody should ask.
        """
        below = Path(os.path.abspath(path)).relative_to(self._top).parts  # noqa: PTH100
        names = [os.fsencode(name).decode("latin-1") for name in below]
        for depth in range(len(below) - 1, -1, -1):
            for rule in reversed(self._rules(below[:depth])):
                if (folder or not rule.folders_only) and _matches(rule.components, names[depth:]):
                    self.count += not rule.negated
                    return not rule.negated
        return False


def rules_of(file: Path) -> list[Rule]:
    """Return the patterns of a file; a missing one has none, and as in git a link."""
    if file.is_symlink() or not file.is_file():
        return []
    with file.open("rb") as stream:
        text = stream.read(LONGEST).removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    rules = (_rule(line.removesuffix("\r")) for line in text.split("\n"))
    return [rule for rule in rules if rule is not None]


# A sign behind a backslash, a class in brackets, or a sign.
TOKEN = re.compile(r"\\.|\[[!^]?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*+\]|.", re.S)


def _rule(line: str) -> Rule | None:
    stripped = line.rstrip(" ")
    escaped = (len(stripped) - len(stripped.rstrip("\\"))) % 2  # and so a space stays
    line = line[: len(stripped) + escaped]
    if not line or line.startswith("#"):
        return None
    negated, folders_only = line.startswith("!"), line.endswith("/")
    line = line[negated:].removesuffix("/")
    parts: list[list[str]] = [[]]
    for token in TOKEN.findall(line.removeprefix("/")):
        if token in ("/", "\\/"):
            parts.append([])
        else:
            parts[-1].append(token)
    try:
        found = tuple(_component(tuple(part)) for part in parts)
    except ValueError:  # an open bracket, a last backslash: git matches nothing with it
        return None
    return Rule(found if "/" in line else (None, *found), negated, folders_only)


def _matches(components: tuple[Component, ...], names: list[str]) -> bool:
    last = len(components) - 1
    reached = {0}  # names that the components so far may have used up
    for place, component in enumerate(components):
        if not reached:
            return False
        if component is None:  # at the end it stands for one name at least
            first = min(reached) + (place == last and last > 0)
            reached = set(range(first, len(names) + 1))
        else:
            reached = {n + 1 for n in reached if n < len(names) and component.fullmatch(names[n])}
    return len(names) in reached


@lru_cache(4096)
def _component(tokens: tuple[str, ...]) -> Component:
    """Return the expression of a pattern without slashes; ``ValueError`` for a broken one.

    Of the text between two stars the first place is kept: if any works, it does.
    """
    if len(tokens) > 1 and set(tokens) == {"*"}:
        return None
    pieces = [""]  # a star lies between two
    for token in tokens:
        if token == "*":
            pieces.append("")
        elif token in ("[", "\\"):
            raise ValueError(token)
        elif token.startswith("["):
            pieces[-1] += _class(token[1:-1])
        else:
            pieces[-1] += "." if token == "?" else re.escape(token.removeprefix("\\"))
    first, *rest = pieces
    if rest:
        first += "".join(f"(?>.*?{piece})" for piece in rest[:-1]) + f".*{rest[-1]}"
    return re.compile(first, re.DOTALL)


CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \t", "cntrl": "\0-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "space": " \t-\r",
    "punct": "!-/:-@\\[-`{-~", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
ITEM = re.compile(r"\[:([^\]]*):\]|(\\.|.)(?:-(\\.|.))?", re.S)


def _class(inside: str) -> str:
    """Return the class of a regular expression for what stands in brackets."""
    negated = inside.startswith(("!", "^"))
    found = ""
    for name, first, last in ITEM.findall(inside[negated:]):
        if not first:
            if name not in CLASSES:
                raise ValueError(name)
            found += CLASSES[name]
            continue
        begin, end = first[-1], last[-1:] or first[-1]
        found += re.escape(begin) + (f"-{re.escape(end)}" if begin <= end else "")
    return f"[{'^' if negated else ''}{found}]"
