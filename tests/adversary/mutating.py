"""Changes bytes as damage and malice do: bits, pieces, numbers, lines, and the values of JSON."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

import yaml

ODD_TEXTS = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b"\t", b" ", b"\x85",
    b"\xc2\xa0", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"\x1b[31m", b"NaN", b"Infinity", b"-Infinity",
    b"1e400", b"-0", b"9" * 400, b"9" * 5000, b"-1", b"0x10", b"1_0", b"true", b"null", b'"', b"'",
    b"\\", b"\\ud800", b"\\u0000", b"]", b"}", b",", b":", b"#", b"%", b"&a", b"*a", b"<<: *a",
    b"- ", b"|", b">", b"~", b"../", b"/", b"*", b"q1", b"d01", b"[" * 3000, b"{" * 200,
    b'{"a":' * 1500, b"a" * 100_000, b"!!python/object/apply:os.system ['touch pwned']",
    *(each.encode() for each in ("é", "\u0661\u0662", "\U0001f600", "\u202e")),
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(2**63), 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", " ", "\x00", "a" * 5000, "\u202e", "../../x", "/dev/null/x",
    "NaN", "1", [], [[]], {}, {"a": 1}, [None], ["a"], [1, 2], [0.1] * 3, [float("nan")] * 8,
    "\U0001f600", "\ud83d", "os:system", "flat", "bm25", "dense", {"type": "os:system"},
    {"type": "flat"}, "d01", "q1",
)  # fmt: skip
ODD_NAMES = ("x", "", "type", "_id", "\x00")
TEXTS = (".json", ".jsonl", ".tsv", ".txt", ".trec", ".yaml", ".csv", ".md")

Change = Callable[[bytearray, int, random.Random], None]


def mutate_bytes(data: bytes, chance: random.Random, *, lines: bool = False) -> bytes:
    """Change one to eight places; with ``lines`` also whole lines and their fields."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        change = chance.choice((*CHANGES, _line) if lines else CHANGES)
        if changed or change in (_cut, _odd):
            change(changed, chance.randrange(len(changed) + 1), chance)
    return bytes(changed)


def _bit(data: bytearray, at: int, chance: random.Random) -> None:
    data[at % len(data)] ^= 1 << chance.randrange(8)


def _byte(data: bytearray, at: int, chance: random.Random) -> None:
    data[at % len(data)] = chance.choice((0, 255, 127, 128, 10, 32, chance.randrange(256)))


def _cut(data: bytearray, at: int, chance: random.Random) -> None:
    del data[at:]


def _remove(data: bytearray, at: int, chance: random.Random) -> None:
    del data[at : at + chance.choice((1, 2, 4, 8, 64, 512))]


def _repeat(data: bytearray, at: int, chance: random.Random) -> None:
    size = chance.choice((1, 4, 16, 100, 1000))
    data[at:at] = data[at : at + size] * chance.choice((1, 1, 2, 50))


def _move(data: bytearray, at: int, chance: random.Random) -> None:
    size = chance.choice((1, 8, 64))
    piece = data[at : at + size]
    del data[at : at + size]
    to = chance.randrange(len(data) + 1)
    data[to:to] = piece


def _odd(data: bytearray, at: int, chance: random.Random) -> None:
    data[at:at] = chance.choice(ODD_TEXTS)


def _number(data: bytearray, at: int, chance: random.Random) -> None:
    width = chance.choice((1, 2, 4, 8))
    data[at : at + width] = odd_number(chance, width)


def _line(data: bytearray, at: int, chance: random.Random) -> None:
    lines = bytes(data).split(b"\n")
    one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            lines[one], lines[two] = lines[two], lines[one]
        case 1:
            lines.insert(one, lines[two])
        case 2:
            lines[one] = chance.choice(ODD_TEXTS)
        case _:
            fields = re.split(rb"([\t ,])", lines[one])
            fields[chance.randrange(len(fields))] = chance.choice(ODD_TEXTS)
            lines[one] = b"".join(fields)
    data[:] = b"\n".join(lines)


CHANGES: tuple[Change, ...] = (_bit, _byte, _cut, _remove, _repeat, _move, _odd, _number)


def odd_number(chance: random.Random, width: int) -> bytes:
    """Return a number at the edges of so many bytes."""
    bits = 8 * width
    edges = (0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 2 ** min(bits - 1, 20))
    return chance.choice((*edges, chance.getrandbits(bits))).to_bytes(width, "little")


def mutate_values(data: bytes, chance: random.Random) -> bytes:
    """Change numbers in place, as somebody does who keeps the sizes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        width = chance.choice((1, 2, 4, 8))
        at = chance.randrange(max(1, len(changed) - 8)) & ~(chance.choice((1, 4, 8)) - 1)
        changed[at : at + width] = odd_number(chance, width)
    return bytes(changed[: len(data)])


def mutate_value(value: Any, chance: random.Random) -> Any:
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key, what, changed = chance.choice(list(value)), chance.random(), dict(value)
        if what < 0.12:
            del changed[key]
        elif what < 0.2:
            changed[chance.choice([*ODD_NAMES, f"{key}x"])] = changed.pop(key)
        else:
            changed[key] = mutate_value(value[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        at, what = chance.randrange(len(value)), chance.random()
        if what < 0.1:
            return value[:at]
        if what < 0.2:
            return [*value, value[at]]
        return [*value[:at], mutate_value(value[at], chance), *value[at + 1 :]]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and chance.random() < 0.4:
        return value + chance.choice((1, -1, 1000, -value, 2**40, 0.5))
    return chance.choice(ODD_VALUES)


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """Change one or two values of a JSON text."""
    value = json.loads(data)
    for _ in range(chance.choice((1, 1, 2))):
        value = mutate_value(value, chance)
    return _json(value, chance)


def _json(value: Any, chance: random.Random) -> bytes:
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    return text.encode("utf-8", "surrogatepass")


def mutate_json_lines(data: bytes, chance: random.Random) -> bytes:
    """Change values of one to three lines."""
    lines = data.splitlines()
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(len(lines))
        lines[at] = mutate_json(lines[at], chance) if lines[at][:1] == b"{" else b"x"
    return b"\n".join(lines) + b"\n"


def mutate_yaml(data: bytes, chance: random.Random) -> bytes:
    """Change one or two values of a YAML text."""
    value = yaml.safe_load(data)
    for _ in range(chance.choice((1, 1, 2))):
        value = mutate_value(value, chance)
    try:
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).encode()
    except UnicodeError:
        return _json(value, chance)


def mutate_header(data: bytes, chance: random.Random) -> bytes:
    """Change the header of an ``.npy`` file."""
    edge = data.find(b"\n") + 1 or 128
    return mutate_bytes(data[:edge], chance, lines=True) + data[edge:]


def mutate_tensors(data: bytes, chance: random.Random) -> bytes:
    """Change the JSON header of a safetensors file, whose length is made to agree."""
    size = int.from_bytes(data[:8], "little")
    head = mutate_json(data[8 : 8 + size], chance)
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


# How a name ends -> a change that knows the format, and how often it is taken.
KNOWN: dict[str, tuple[Callable[[bytes, random.Random], bytes], float]] = {
    ".json": (mutate_json, 0.6),
    ".jsonl": (mutate_json_lines, 0.6),
    ".yaml": (mutate_yaml, 0.6),
    ".npy": (mutate_header, 0.4),
    ".safetensors": (mutate_tensors, 0.5),
}


def mutated(data: bytes, name: str, chance: random.Random) -> bytes:
    """Return a file's bytes changed, often in a way that its format would not notice."""
    if data[:2] == b"\x1f\x8b" and chance.random() < 0.7:
        return gzip.compress(mutated(gzip.decompress(data), name.removesuffix(".gz"), chance), 1)
    for ending, (change, share) in KNOWN.items():
        if name.endswith(ending) and data and chance.random() < share:
            return change(data, chance)
    return mutate_bytes(data, chance, lines=name.endswith(TEXTS))
