"""Folders of files: titles, metadata, encodings, and what is left out."""

import gzip
import logging
from pathlib import Path

import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError, MissingPackageError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers import as_documents
from sluice.retrieval.documents.readers.files import kinds as html_file

PAGE = """<html lang="en"><head><title>Gold &amp; rivers</title>
<meta name="author" content="Ada"><meta name="keywords" content="gold, river"></head>
<body><nav>Home</nav><main><h1>Gold &amp; rivers</h1><p>A <b>sluice</b>
 washes.<script>bad()</script></p><h2>Use</h2><ul><li>one</li><li>two</li></ul>
<pre>x = 1
  y</pre><table><tr><td>a</td><td>b</td></tr></table></main><footer>end</footer></body></html>"""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.md").write_text(
        "---\ntitle: Front\ndate: 2024-05-01\ntags: [x, y]\nnested: {a: 1}\n---\n# Heading\ntext\n"
    )
    (folder / "b.md").write_text("\n# Only *heading* #\n\nbody\n## Below\n")
    (folder / "deep" / "c.txt").write_text("plain\n", encoding="utf-8-sig")
    (folder / "deep" / "er" / "d.html").write_text(PAGE)
    (folder / "e.txt.gz").write_bytes(gzip.compress(b"packed"))
    return folder


def test_each_file_is_a_document(notes: Path) -> None:
    documents = as_documents(notes)
    assert list(documents) == [
        Document(
            "a.md", "Front", "# Heading\ntext\n",
            {"type": "markdown", "date": "2024-05-01", "tags": ["x", "y"]},
        ),
        Document("b.md", "Only *heading*", "body\n## Below\n", {"type": "markdown"}),
        Document("deep/c.txt", "c", "plain\n", {"folder": "deep", "type": "text"}),
        Document(
            "deep/er/d.html", "Gold & rivers",
            "A sluice washes.\n\n## Use\n\n- one\n- two\n\nx = 1\n  y\n\na\tb",
            {"folder": "deep/er", "type": "html", "lang": "en", "author": "Ada",
             "keywords": ["gold", "river"]},
        ),
        Document("e.txt.gz", "e", "packed", {"type": "text"}),
    ]  # fmt: skip
    assert documents.described == (
        f"{notes}: 5 files (2 Markdown, 2 text, 1 HTML), id from the path, title from front "
        "matter, heading or name"
    )
    assert documents.parts == ("markdown", "text", "html")
    (one,) = as_documents(notes / "b.md", metadata=[])
    assert one == Document("b.md", "Only *heading*", "body\n## Below\n")


def test_what_is_left_out_is_counted(notes: Path, caplog: pytest.LogCaptureFixture) -> None:
    (notes / "binary.txt").write_bytes(b"a\0b")
    (notes / "empty.md").write_text(" \n")
    (notes / "latin.txt").write_bytes("café".encode("cp1252"))
    (notes / "picture.png").write_bytes(b"\x89PNG")
    (notes / ".hidden.md").write_text("no")
    (notes / ".git").mkdir()
    (notes / ".git" / "x.md").write_text("no")
    (notes / "runs").mkdir()
    (notes / "runs" / "experiment.yaml").write_text("")
    (notes / "runs" / "report.md").write_text("no")
    (notes / "deep" / "loop").symlink_to(notes)
    (notes / "broken.md").symlink_to(notes / "nowhere.md")
    documents = as_documents(notes)
    assert documents.described.endswith("; left out: 1 .png")
    with caplog.at_level(logging.INFO, "sluice"):
        texts = {document.id: document.text for document in documents}
    assert texts.keys() == {"a.md", "b.md", "deep/c.txt", "deep/er/d.html", "e.txt.gz", "latin.txt"}
    assert texts["latin.txt"] == "café"
    assert "left out: 1 binary (binary.txt), 1 empty (empty.md)" in caplog.text
    assert "1 file not UTF-8 and read as Windows-1252: latin.txt" in caplog.text


def test_a_change_of_content_changes_the_fingerprint(notes: Path) -> None:
    before = as_documents(notes).fingerprint
    assert as_documents(notes).fingerprint == before
    (notes / "b.md").write_text("# Only *heading* #\n\nbody\n## Above\n\n")
    assert as_documents(notes).fingerprint != before


def test_a_pattern_reads_any_text(notes: Path) -> None:
    (notes / "x.py").write_text("# not a heading\nprint()\n")
    assert [each.id for each in as_documents(f"{notes}/**/*.py")] == ["x.py"]
    with pytest.raises(DataError, match=r"only 1 .py; to read others as text give a pattern"):
        (notes.parent / "code").mkdir()
        (notes / "x.py").rename(notes.parent / "code" / "x.py")
        as_documents(notes.parent / "code")


def test_pdf(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pypdf = pytest.importorskip("pypdf")
    from pdf_files import write_pdf

    write_pdf(tmp_path / "a.pdf", ["gold in the river", "a sluice"], title="Report", author="Ada")
    writer = pypdf.PdfWriter()
    writer.add_blank_page(72, 72)
    writer.write(tmp_path / "scan.pdf")
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    with caplog.at_level(logging.INFO, "sluice"):
        (read,) = as_documents(tmp_path)
    assert read[:3] == ("a.pdf", "Report", "gold in the river\n\na sluice")
    assert read.metadata == {"type": "pdf", "pages": 2, "author": "Ada", "date": "2024-05-01"}
    assert "without text (a scan?) (scan.pdf)" in caplog.text
    assert "damaged PDF" in caplog.text
    with pytest.raises(DataError, match=r"bad.pdf: damaged PDF"):
        list(as_documents(tmp_path / "bad.pdf"))


def test_without_the_extra(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(html_file.PACKAGES, "html", ("no_such_module", "beautifulsoup4"))
    documents = as_documents(notes)
    assert "left out: 1 HTML (to read them: pip install 'sluice-ir[files]')" in documents.described
    assert len(list(documents)) == 4
    with pytest.raises(MissingPackageError, match=r"beautifulsoup4.*'sluice-ir\[files\]'"):
        as_documents(notes / "deep" / "er")


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no files in this folder; expected files such as"):
        as_documents(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    (tmp_path / "readme.md").write_text("no document")
    assert [each.id for each in as_documents(tmp_path)] == ["1"]
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(ConfigError, match="id='a' names a column, and files of text have none"):
        as_documents(tmp_path, id="a")
    (tmp_path / "experiment.yaml").write_text("")
    with pytest.raises(DataError, match=r'holds an experiment .* sluice search .* "..."'):
        as_documents(tmp_path)


@pytest.fixture
def linked(notes: Path) -> Path:
    """Notes with links: inside, out of the folder, through a chain, by ``..``, in circles."""
    secret = notes.parent / "secret"
    secret.mkdir()
    (secret / "key.txt").write_text("the key")
    (notes / "inside.md").symlink_to("a.md")
    (notes / "out.txt").symlink_to(secret / "key.txt")
    (notes / "chain.txt").symlink_to("out.txt")
    (notes / "deep" / "folder").symlink_to(secret)
    (notes / "deep" / "up.txt").symlink_to("../../notes/../secret/key.txt")
    (notes / "deep" / "parent").symlink_to("../..")
    (notes / "deep" / "again").symlink_to("..")
    (notes / "self.txt").symlink_to("self.txt")
    (notes / "gone.txt").symlink_to("/no/such/place")
    return notes


LEFT_OUT = "chain.txt", "out.txt", "deep/folder", "deep/parent", "deep/up.txt", "gone.txt"


@pytest.mark.parametrize("pattern", ["", "/**/*"])
def test_links_out_of_a_folder_are_left_out(
    linked: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        documents = {each.id: each.text for each in as_documents(f"{linked}{pattern}")}
    assert {"a.md", "b.md", "inside.md", "deep/c.txt", "deep/er/d.html"} <= set(documents)
    assert not set(documents) & set(LEFT_OUT)
    assert "the key" not in documents.values()
    count = len(LEFT_OUT)
    assert "1 behind broken links (self.txt)" in caplog.text
    assert f"{count} behind links that lead out of it, which --allow PATH follows (" in caplog.text
    allowed = {each.id for each in as_documents(str(linked), allow=[str(linked.parent / "secret")])}
    assert allowed - set(documents) == {
        "chain.txt",
        "out.txt",
        "deep/up.txt",
        "deep/folder/key.txt",
    }
    assert allowed <= {each.id for each in as_documents(linked, allow=["/"])}


def test_a_folder_that_is_a_link_is_read(linked: Path) -> None:
    (linked.parent / "other").symlink_to("notes")
    assert "a.md" in {each.id for each in as_documents(linked.parent / "other")}


def test_tables_behind_links_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,text\n1,gold\n")
    (tmp_path / "b.csv").write_text("id,text\n2,secret\n")
    (tmp_path / "in" / "b.csv").symlink_to(tmp_path / "b.csv")
    with caplog.at_level(logging.WARNING, "sluice"):
        assert [each.text for each in as_documents(tmp_path / "in")] == ["gold"]
    assert (
        "left out: 1 behind links that lead out of it, which --allow PATH follows (b.csv)"
        in caplog.text
    )


def test_a_corpus_behind_a_link_is_left_out(tmp_path: Path) -> None:
    secret, given = tmp_path / "secret.jsonl", tmp_path / "given"
    secret.write_text('{"_id": "1", "text": "zebra"}\n')
    given.mkdir()
    (given / "a.txt").write_text("horse")
    (given / "corpus.jsonl").symlink_to(secret)
    assert [document.text for document in as_documents(given)] == ["horse"]
    allowed = as_documents(given, allow=[str(tmp_path)])
    assert [document.text for document in allowed] == ["zebra"]
