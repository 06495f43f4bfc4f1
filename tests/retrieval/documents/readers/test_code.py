"""Folders of code: functions and classes with their lines, .gitignore as git has it, bad input."""

import logging
import os
import random
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers import as_documents
from sluice.retrieval.documents.readers.code import definitions as cutting, folder as reading
from sluice.retrieval.documents.readers.code.folder import LARGEST, line_of
from sluice.retrieval.documents.readers.code.ignored import GitIgnore

SOURCE = '''"""What it is for."""

import os

LIMIT = 3


class JSONDecoder(Base):
    """Decodes."""

    size = 1

    @property
    def raw_decode(
        self,
    ) -> int:
        """Half a pair: \\ud800."""

        def inner(): ...
        return 1

    class Inner:
        def deep(self): return 2

if os.name == "x":
    def twice(): return 1
else:
    def twice(): return 2
'''


def by_id(folder: Path, **options: Any) -> dict[str, Document]:
    return {each.id: each for each in as_documents(folder, code=True, **options)}


def test_functions_and_classes_with_path_and_line(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "x.py").write_text(SOURCE)
    (tmp_path / "read.me").write_text("not code")
    found = by_id(tmp_path)
    file = "deep/x.py"
    assert list(found) == [
        file, f"{file}::JSONDecoder", f"{file}::JSONDecoder.raw_decode",
        f"{file}::JSONDecoder.Inner", f"{file}::JSONDecoder.Inner.deep", f"{file}::twice",
        f"{file}::twice#2",
    ]  # fmt: skip
    method = found[f"{file}::JSONDecoder.raw_decode"]
    assert method.title == "JSONDecoder.raw_decode"
    lines = SOURCE.split("\n")
    assert method.text == "\n".join(lines[12:20])
    assert method.metadata == {
        "path": file, "line": 13, "end_line": 20, "kind": "method", "language": "python",
        "signature": "def raw_decode( self, ) -> int:", "docstring": "Half a pair: ?.",
    }  # fmt: skip
    assert line_of(method.metadata) == f"{file}:13"
    kinds = Counter(each.metadata["kind"] for each in found.values())
    assert kinds == {"module": 1, "class": 2, "method": 2, "function": 2}
    # Each line of the file is in one document, but for blank ones at the ends.
    texts = "\n".join(each.text for each in found.values())
    assert Counter(filter(str.strip, texts.split("\n"))) == Counter(filter(str.strip, lines))
    assert "raw_decode" not in found[f"{file}::JSONDecoder"].text
    assert found[file].title == "x"


def test_bad_input_is_counted_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("def secret(): ...")
    folder = tmp_path / "src"
    folder.mkdir()
    with pytest.raises(DataError, match="no code in it; 0 other"):
        by_id(folder)
    (folder / "a.md").write_text("x")
    with pytest.raises(DataError, match=r"no code in it; 1 other files.*leave --code"):
        by_id(folder)
    with pytest.raises(DataError, match="no such file or folder"):
        by_id(folder / "gone")
    with pytest.raises(ConfigError, match="code: is for a folder"):
        as_documents(["x"], code=True)
    (folder / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\ndef gr\xfc\xdfe(): ...\n")
    (folder / "windows.js").write_bytes(b"// caf\xe9\n")
    (folder / "old.py").write_text("print 'x'\n\n\ndef f():\n    print 'y'\n")
    (folder / "deep.py").write_text("x = " + "(" * 5000)
    (folder / "null.py").write_bytes(b"x = '\0'")
    (folder / "huge.py").write_bytes(b"#" * 70 + b"\n#" * LARGEST)
    (folder / "min.js").write_text("x" * 20_000)
    (folder / "empty.py").write_text("\n")
    (folder / "out.py").symlink_to(outside / "secret.py")
    (folder / "gone.py").symlink_to(outside / "nothing.py")
    (folder / "outside").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    with caplog.at_level(logging.INFO, "sluice"):
        found = by_id(folder)
    assert sorted(found) == [
        "deep.py::1", "latin.py", "latin.py::grüße", "old.py::1", "windows.js::1",
    ]  # fmt: skip
    assert found["windows.js::1"].text == "// café"
    assert not any("secret" in each.text for each in found.values())
    said = caplog.text
    assert "3 behind links that lead out of it" in said
    assert "1 larger than 1 MB (huge.py)" in said
    assert "1 with lines of more than 10,000 characters (min.js)" in said
    assert "1 binary (null.py)" in said
    assert "2 files not parsed, cut into paragraphs: deep.py, old.py" in said
    assert "1 file not UTF-8 and read as Windows-1252: windows.js" in said
    for name in ("latin.py", "windows.js", "old.py", "deep.py"):
        (folder / name).unlink()
    with pytest.raises(DataError, match="none of its 4 files"):
        by_id(folder)
    with pytest.raises(DataError, match="no code in it"):
        by_id(folder / "out.py")
    assert "outside/secret.py::secret" in by_id(folder, allow=[str(outside)])


ATOMS = [
    "a", "b", "c", ".", "*", "**", "?", "/", "/", "[ab]", "[!a]", "[a-c]", "[z-a]", "[]a]",
    "[[:alpha:]]", "[^[:digit:]x]", "\\*", "\\", "[", "!", "#", "**/", "/**", "é", "x", "1", "[a",
    "[\\]]", "-", "[a-]", "[[:foo:]]", "[a/b]", "A", " ", "\\ ",
]  # fmt: skip


def random_pattern(chance: random.Random) -> str:
    text = "".join(chance.choice(ATOMS) for _ in range(chance.randint(1, 5)))
    begin, end = chance.choice(["", "", "", "!", "/"]), chance.choice(["", "", "", "/"])
    return begin + text + end


@pytest.mark.parametrize("seed", range(12))
def test_gitignore_is_read_as_git_reads_it(tmp_path: Path, seed: int) -> None:
    chance, signs = random.Random(seed), "aabbcc.x1é -][!#\\A"
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    folders = [tmp_path]
    for number in range(40):
        path = chance.choice(folders) / "".join(
            chance.choice(signs) for _ in range(chance.randint(1, 4))
        )
        if path.name.strip(".") and not path.exists():
            if number % 3:
                path.touch()
            else:
                path.mkdir()
                folders.append(path)
    for folder in chance.sample(folders, min(3, len(folders))):
        lines = [random_pattern(chance) for _ in range(4)]
        (folder / ".gitignore").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / ".git" / "info" / "exclude").write_text("x*\n!xa\r\n")
    read, asked, left_out = GitIgnore(tmp_path), list[str](), set[str]()
    for top, names, files in os.walk(tmp_path):
        inside = [name for name in names if name != ".git"]
        for name in [*inside, *files]:
            path = Path(top, name)
            asked.append(str(path.relative_to(tmp_path)))
            if read.ignores(path, folder=name in inside):
                left_out.add(asked[-1])
        names[:] = [n for n in inside if str(Path(top, n).relative_to(tmp_path)) not in left_out]
    called = ["git", "check-ignore", "-z", "--stdin", "--no-index"]
    said = subprocess.run(
        called, cwd=tmp_path, input="\0".join(asked).encode(), capture_output=True, check=False
    )
    assert left_out == set(said.stdout.decode().split("\0")) - {""}


def test_ignored_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("build/\n*_pb2.py\n")
    for name in ("src/a.py", "src/a_pb2.py", "src/build/b.py", "src/kept_pb2.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1")
    (tmp_path / "src" / ".gitignore").write_text("!kept_*\n")
    assert list(by_id(tmp_path / "src")) == ["a.py", "kept_pb2.py"]  # those of the repository too
    assert "2 that git ignores" in as_documents(tmp_path, code=True).described


def test_a_hostile_pattern_of_files_is_quick() -> None:
    from sluice.retrieval.documents.readers.code.ignored import _component

    assert not _component("*a" * 120 + "b").fullmatch("a" * 255)


def node(kind: str, text: str = "", first: int = 0, last: int = 0, **fields: Any) -> Any:
    children = fields.pop("children", [])
    return SimpleNamespace(
        type=kind, text=text.encode(), start_point=(first, 0), end_point=(last, 0),
        start_byte=fields.pop("at", 0), named_children=children, prev_named_sibling=None,
        child_by_field_name=fields.get,
    )  # fmt: skip


def test_other_languages_by_tree_sitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class A {\n  run(x) {\n    go\n  }\n}\nint *add(int a) {\n}"
    body = node("statement_block", at=7)
    run = node("method_definition", "run(x) {", 1, 3, name=node("id", "run"), body=body)
    inside = node("class_body", at=8, children=[run])
    one = node("class_declaration", "class A {", 0, 4, name=node("id", "A"), body=inside)
    deep = node("pointer", declarator=node("function", declarator=node("id", "add")))
    two = node("function_definition", "int *add(int a) {", 5, 6, declarator=deep,
               body=node("block", at=16))  # fmt: skip
    one.prev_named_sibling = node("comment", "// Runs.")
    tree = SimpleNamespace(root_node=node("program", children=[node("list", children=[one]), two]))
    core, grammar = ModuleType("tree_sitter"), ModuleType("tree_sitter_c")
    core.__dict__.update(Language=lambda name: name,
                         Parser=lambda name: SimpleNamespace(parse=lambda _: tree))  # fmt: skip
    grammar.__dict__["language"] = lambda: "c"
    monkeypatch.setitem(__import__("sys").modules, "tree_sitter", core)
    monkeypatch.setitem(__import__("sys").modules, "tree_sitter_c", grammar)
    cutting._parser.cache_clear()
    found, _ = cutting.definitions(text, "c")
    cutting._parser.cache_clear()
    assert [(each.name, each.kind, each.first, each.last) for each in found] == [
        ("A", "class", 1, 5), ("A.run", "method", 2, 4), ("add", "function", 6, 7),
    ]  # fmt: skip
    assert found[0].text == "class A {\n}"
    assert [each.signature for each in found] == ["class A", "run(x)", "int *add(int a)"]
    assert found[0].docstring == "// Runs."


def test_paragraphs_end_at_the_margin() -> None:
    text = "\n".join(["int a;", *["  x;"] * 9, "", "int b;", *["  y;"] * 70])
    parts = cutting.paragraphs(text.split("\n"))
    assert [(each.name, each.first, each.last) for each in parts] == [
        ("1", 1, 11), ("2", 12, 71), ("3", 72, 82),
    ]  # fmt: skip
    assert cutting.paragraphs(["", "", ""]) == []


@pytest.mark.parametrize(("room", "cuts"), [(1 << 25, 3), (0, 6)])
def test_a_text_that_is_read_again_is_parsed_once(
    room: int, cuts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "KEPT", room)
    parsed = list[str]()
    monkeypatch.setattr(
        reading,
        "definitions",
        lambda text, language: parsed.append(text) or cutting.definitions(text, language),
    )
    (tmp_path / "a.py").write_text("def one():\n    return 1\n")
    (tmp_path / "b.py").write_text("def two():\n    return 2\n")
    documents = as_documents(tmp_path, code=True)
    first = [document.text for document in documents]
    assert [document.text for document in documents] == first
    (tmp_path / "b.py").write_text("def three():\n    return 3\n")
    assert [each.id for each in documents] == ["a.py::one", "b.py::three"]
    assert len(parsed) == cuts
