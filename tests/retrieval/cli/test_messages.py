"""How errors are written: clauses on lines of their own, wrapped and coloured on a terminal."""

import errno
import os
import sys

import pytest
from places import ROOT

from sluice.retrieval.cli.terminal.printing import (
    clauses,
    disk_message,
    os_message,
    shown,
    write_error,
)


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("one", ["one"]),
        ("a: b; c; d?", ["a: b", "c", "d?"]),
        ("the hub's cache; it's there", ["the hub's cache", "it's there"]),
        ("unknown 'a; b'; known: c", ["unknown 'a; b'", "known: c"]),
        ("holds (x; y) and [a; b]; z", ["holds (x; y) and [a; b]", "z"]),
        ("`sluice run x; y` runs; z", ["`sluice run x; y` runs", "z"]),
        ("a;b", ["a;b"]),
        ("", []),
    ],
)
def test_clauses(message: str, parts: list[str]) -> None:
    assert list(clauses(message)) == parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Error while serializing: I/O error: No space left on device (os error 28)",
         "No space left on device; "),
        ("Error in void f(int) at x.cpp:4: 'ret == 1' failed: write error in a b/x.faiss: 4 != 9 "
         "(File too large)",
         "a b/x.faiss: File too large; "),
        ("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
         "a checkpoint was not written in full; "),
        ("list index out of range", None),
    ],
)  # fmt: skip
def test_libraries_that_could_not_write(text: str, message: str | None) -> None:
    advice = (
        "what was complete before is unchanged; free some space, or choose a folder on another "
        "disk, and run the command again"
    )
    assert disk_message(RuntimeError(text)) == (message and message + advice)


def test_what_was_expected_stands_beside_what_was_found() -> None:
    assert shown("k: 'x'; expected a number; did you mean 3?") == (
        "error: k: 'x'; expected a number\n  did you mean 3?"
    )
    assert shown(f"k: {'x' * 80}; expected a number").splitlines()[1] == "  expected a number"


def test_a_terminal_is_not_overrun() -> None:
    lines = shown(f"first; known: {', '.join(['name'] * 40)}", 60).splitlines()
    assert lines[0] == "error: first"
    assert max(map(len, lines)) <= 60
    assert [len(line) - len(line.lstrip()) for line in lines[1:3]] == [2, 4]


@pytest.mark.parametrize(
    ("environment", "colour"), [({}, True), ({"NO_COLOR": "1"}, False), ({"CI": "true"}, False),
    ({"TERM": "dumb"}, False)],
)  # fmt: skip
def test_colours(
    environment: dict[str, str],
    colour: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    write_error("one; two")
    err = capsys.readouterr().err
    assert ("\033[31merror:\033[0m one" in err) == colour
    assert err.endswith("one\n  two\n")


def test_what_the_system_refuses() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "out/index")
    assert os_message(full) == (
        "out/index: No space left on device; what was complete before is unchanged; free some "
        "space, or choose a folder on another disk, and run the command again"
    )
    for number, remedy in (
        (errno.EDQUOT, "free some space"), (errno.EFBIG, "raise the limit for the size of files"),
        (errno.EACCES, "choose a folder or file that you may use"), (errno.EROFS, "written to"),
        (errno.ENOENT, "or a place where it can be made"), (errno.ENOTDIR, "not below a file"),
        (errno.EPERM, "that you may use"),
    ):  # fmt: skip
        said = os_message(OSError(number, os.strerror(number), "out"))
        assert said.startswith(f"out: {os.strerror(number)}; what was complete before is unchanged")
        assert remedy in said
        assert said.endswith(", and run the command again")
    assert os_message(OSError("odd")) == "odd"


def test_only_json_goes_to_the_terminal_as_it_is() -> None:
    """Texts go through ``echo``, which shows control characters."""
    own = {"messages.py", "printing.py"}  # echo, and words in bold of a text it wrote
    raw = [
        f"{file.name}: {line.strip()}"
        for file in (ROOT / "retrieval" / "cli").rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if "typer.echo(" in line and "json.dumps(" not in line and file.name not in own
    ]
    assert raw == []
