"""Reads what somebody else wrote within bounds: streams, lines, whole files, samples, YAML.

A record (a line, a document, a file that is one value) is at most ``LONGEST`` bytes; what is read
as a stream may be of any size, unless it is compressed as no honest data are.
"""

from __future__ import annotations

import gzip
import io
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, Any, Generic, NamedTuple, TypeVar, cast

import yaml

from sluice.encoders.foundation.errors import ConfigError, DataError

DEEPEST = 100  # sections inside sections; libyaml's composer ends the process at some 20,000
LARGEST = 4 << 20  # characters and values, each alias counted as what it stands for
LONGEST_NUMBER = 400  # characters; a number of parts (1:30:00) takes quadratic time

# libyaml's, where it is installed: ten times as fast, and a command waits for it.
SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainLoader(SAFE):  # type: ignore[misc]
    """Makes plain values only, and no number longer than ``LONGEST_NUMBER``."""


def _number(loader: Any, node: Any) -> Any:
    if len(node.value) > LONGEST_NUMBER:
        raise ConfigError(
            f"line {node.start_mark.line + 1}: a number of {len(node.value):,} characters; put it "
            "in quotes, or write a shorter one"
        )
    kind = node.tag.rpartition(":")[2]
    return getattr(SAFE, f"construct_yaml_{kind}")(loader, node)


for _kind in ("int", "float"):
    PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


class _Extent(NamedTuple):
    """How deep a value is, and how many characters and values it has."""

    depth: int = 0
    size: int = 1


def load_yaml(text: str, loader: Any = PlainLoader) -> Any:
    """Return the value of a YAML text; ``ConfigError`` with the line for one out of bounds.

    What is not YAML stays a ``YAMLError``, an impossible date a ``ValueError``.
    """
    _refuse_bombs(text)
    return yaml.load(text, Loader=loader)  # a SafeLoader


def yaml_value(text: str, where: str) -> Any:
    """Return the value of a YAML text that ``where`` names; ``ConfigError`` if it is not YAML."""
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: {text!r:.200} is not YAML ({error})") from None


def _refuse_bombs(text: str) -> None:
    """Raise ``ConfigError`` for sections nested too deeply, too large, or that hold themselves.

    Reads the events alone, which needs no stack, and follows the aliases.
    """
    extents: dict[str, _Extent | None] = {}  # by anchor; None: the section is not closed yet
    open_sections: list[tuple[str | None, _Extent]] = [(None, _Extent())]  # of what is inside
    events: Iterator[Any] = yaml.parse(text, Loader=SAFE)
    for event in events:
        line, extent = event.start_mark.line + 1, _Extent()
        if isinstance(event, yaml.CollectionStartEvent):
            open_sections.append((event.anchor, _Extent()))
            if event.anchor is not None:
                extents[event.anchor] = None
            extent = _Extent(0, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, inside = open_sections.pop()
            extent = _Extent(inside.depth + 1, inside.size)
            if anchor is not None:
                extents[anchor] = extent
        elif isinstance(event, yaml.ScalarEvent):
            extent = _Extent(0, 1 + len(event.value))
            if event.anchor is not None:
                extents[event.anchor] = extent
        elif isinstance(event, yaml.AliasEvent):
            known = extents.get(str(event.anchor), extent)
            if known is None:
                raise ConfigError(
                    f"line {line}: *{event.anchor} is inside the section "
                    f"&{event.anchor}, which would hold itself; write the value out"
                )
            extent = known
        anchor, inside = open_sections[-1]
        size = inside.size + extent.size
        open_sections[-1] = (anchor, _Extent(max(inside.depth, extent.depth), size))
        if len(open_sections) + extent.depth > DEEPEST:
            raise ConfigError(f"not valid YAML, line {line}: nested too deeply; write it flatter")
        if size > LARGEST:
            raise ConfigError(
                f"line {line}: too large; with every alias (*name) written out it has more than "
                f"{LARGEST >> 20} million characters and values"
            )


Item = TypeVar("Item")


class Reservoir(Generic[Item]):
    """``size`` of the items added, each as likely as any other (algorithm R; Vitter, 1985)."""

    def __init__(self, size: int, chance: Random) -> None:
        self.items: list[Item] = []
        self._size = size
        self._chance = chance
        self._seen = 0

    def add(self, item: Item) -> None:
        """Add the next item of the stream, which may replace another or be dropped."""
        self._seen += 1
        if len(self.items) < self._size:
            self.items.append(item)
        elif self._size and (place := self._chance.randrange(self._seen)) < self._size:
            self.items[place] = item


def same_text_key(text: str) -> str:
    """Return the text without differences of case, white space and Unicode form (NFKC).

    Texts with equal keys are the same text: when test queries are excluded from training, when
    negatives are dropped, in folds and splits, and when a text is searched for in a document.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


LONGEST = 64 << 20  # bytes of a record
BLOCK = 1 << 20  # bytes decompressed together
GZIP_MAGIC = b"\x1f\x8b"
# Data that unpack to more than FREE bytes are at most RATIO times their size on disk: texts are 3
# to 20 times, zeros a thousand times.
RATIO = 200
FREE = 64 << 20


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` and ``~name`` replaced by the folder that they mean.

    ``ConfigError`` for an unknown home folder, and for a path with a NUL character.
    """
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r:.200}: has a character that no path may have")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first = Path(path).parts[0]
        raise ConfigError(
            f"{str(path)!r:.200}: the home folder {first} is unknown; write the path in full, a "
            f"name that begins with ~ as ./{first}"
        ) from None


def check_file(path: Path) -> None:
    """Raise ``DataError`` for what is missing, a folder, a pipe or a device.

    Files are read more than once, and they end.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # a loop of links, no permission, a zero in the name
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be opened ({reason})") from None
    if stat.S_ISDIR(mode):
        raise DataError(f"{path}: a folder; expected a file")
    if not stat.S_ISREG(mode):
        raise DataError(f"{path}: a pipe or a device; write what it gives to a file, and name that")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressing what is gzip by its name or its beginning.

    Raises as ``check_file`` does.
    """
    check_file(path)
    stream = path.open("rb")
    if path.suffix != ".gz" and stream.peek(2)[:2] != GZIP_MAGIC:
        return stream
    return stream_of(_unpacked(path, stream))


def _unpacked(path: Path, packed: IO[bytes]) -> Iterator[bytes]:
    """Yield what a stream holds, decompressed; ``DataError`` for a bomb."""
    with packed, gzip.GzipFile(fileobj=packed) as unpacked:
        size = 0
        while block := unpacked.read(BLOCK):
            size += len(block)
            if size > FREE and size > RATIO * packed.tell():
                raise DataError(
                    f"{path}: unpacks to more than {RATIO} times its size, as no texts do; "
                    "decompress it yourself if that is right"
                )
            yield block


class _Blocks(io.RawIOBase):
    """A stream of the bytes that an iterator yields."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._blocks = iter(())  # which ends a generator
        super().close()


def stream_of(blocks: Iterator[bytes]) -> IO[bytes]:
    """Return the bytes that an iterator yields as a stream; closing it ends a generator."""
    return cast("IO[bytes]", io.BufferedReader(_Blocks(blocks), BLOCK))


def lines_of(path: Path, stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; ``DataError`` for one above ``LONGEST`` bytes."""
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise too_long(f"{path}:{number}: the line")
        yield line


def read_whole(path: Path, longest: int = LONGEST) -> bytes:
    """Return the bytes of a file that is one value, decompressed; ``DataError`` above a size."""
    with open_bytes(path) as stream:
        data = stream.read(longest + 1)
    if len(data) > longest:
        raise too_long(f"{path}: the file", longest)
    return data


def too_long(what: str, longest: int = LONGEST) -> DataError:
    """Return the error for a record above a size."""
    return DataError(
        f"{what} is longer than {longest >> 20} MB, the most that is read as one piece; split it"
    )
