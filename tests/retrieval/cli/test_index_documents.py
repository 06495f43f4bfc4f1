"""``sluice index SOURCE``: own documents become a hybrid that is searched like any experiment."""

import io
import json
import os
import sqlite3
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.cli.terminal.printing import CONTROL
from sluice.retrieval.experiments.experiment import open_experiment
from sluice.retrieval.retrievers.retriever import Retriever


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notes").mkdir()
    for number in range(6):
        text = f"# Note {number}\nword{number} water\n## Use\nriver {number}\n"
        (tmp_path / "notes" / f"{number}.md").write_text(text)
    (tmp_path / "docs.csv").write_text("nr,ask,reply\n7,gold,in the river\n8,sluice,for water\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_becomes_a_hybrid(sluice: Call, here: Path, bert: Path) -> None:
    code, out, err = sluice("index", "notes", "--output", "my", "--model", bert)
    assert code == 0, err
    assert "notes: 6 files (6 Markdown), id from the path" in err
    assert out.splitlines()[0].startswith("6 documents, ")
    assert "estimate: " in out
    assert "my/retrievers/dense: 6 documents in 12 passages" in out
    assert out.splitlines()[-1] == 'search it: sluice search my "your question"'
    saved = yaml.safe_load((here / "my" / "experiment.yaml").read_text())
    assert saved["dataset"] == {"corpus": str(here / "notes")}
    assert saved["pipelines"] == {"bm25": "bm25", "dense": "dense", "hybrid": "bm25 | dense"}
    assert saved["retrievers"]["dense"]["passages"]["headings"] is True
    code, out, _ = sluice("search", "my", "word3", "-k", 1)
    assert (code, "3.md" in out) == (0, True)
    # Again with nothing changed: nothing is built; the output may lie in the folder itself.
    built = (here / "my" / "retrievers" / "bm25" / "retriever.json").read_bytes()
    (here / "notes" / "0.md").touch()
    code, _, err = sluice("index", "notes", "--output", "my", "--model", bert)
    assert (code, "bm25: indexing" in err) == (0, False)
    assert (here / "my" / "retrievers" / "bm25" / "retriever.json").read_bytes() == built
    # Judgements that come later: the experiment evaluates without being built again.
    (here / "topics.tsv").write_text("q1\tword1\nq2\tword2\n")
    (here / "qrels.txt").write_text("q1 0 1.md 1\nq2 0 2.md 1\n")
    code, _, err = sluice("evaluate", "my")
    assert (code, "give my/experiment.yaml" in err) == (2, True)
    code, out, err = sluice(
        "evaluate", "my/experiment.yaml", "dataset.queries=topics.tsv", "dataset.qrels=qrels.txt",
        "evaluate.latency_queries=0", "evaluate.report=false",
    )  # fmt: skip
    assert code == 0, err
    assert "bm25: indexing" not in err
    assert [name in out for name in ("bm25", "dense", "hybrid")] == [True] * 3


def test_a_source_is_described_once(sluice: Call, here: Path) -> None:
    for name in ("one", "two"):
        (here / f"{name}.tsv").write_text(f"id\ttext\n{name}\tgold\n")
    with sqlite3.connect(here / "x.sqlite") as base:
        base.execute("create table docs (id text, text text)")
        base.execute("insert into docs values ('a', 'gold')")
    base.close()
    for place, source in enumerate(("*.tsv", "x.sqlite#docs", "x.sqlite", "./one.tsv")):
        code, _, err = sluice("index", source, "--bm25", "--output", f"o{place}")
        assert code == 0, err
        assert err.count("text from ") == 1, err


HOSTILE = "\x1b]0;owned\x07 gold \x1b[2J\x9b31m\u202e"


def test_control_characters_are_shown(sluice: Call, here: Path) -> None:
    """A text, an id or a title cannot steer the terminal; JSON is exact."""
    facts = {"id": f"a{HOSTILE}\n", "title": HOSTILE, "text": HOSTILE}
    (here / "bad.jsonl").write_text(json.dumps(facts) + "\n" + json.dumps({**facts, "id": "b"}))
    assert sluice("index", "bad.jsonl", "--bm25", "--output", "bad")[0] == 0
    for words in (("search", "bad", "gold"), ("explain", "bad", "gold")):
        code, out, err = sluice(*words)
        assert code == 0, err
        assert "\\x1b]0;owned\\x07" in out
        assert not CONTROL.search(out + err)
    lines = sluice("search", "bad", "gold", "--json")[1].splitlines()
    hits = [json.loads(line) for line in lines]
    assert {hit["doc_id"] for hit in hits} == {facts["id"], "b"}
    assert {hit["text"] for hit in hits} == {HOSTILE}
    code, _, err = sluice("search", "bad\x1b[2J", "gold")
    assert (code, "bad\\x1b[2J" in err, "\x1b" in err) == (2, True, False)
    code, _, err = sluice("add", "bad", "bad.jsonl")  # said by an error
    assert (code, "\x1b" in err) == (2, False)


def test_one_of_the_retrievers_alone(sluice: Call, here: Path) -> None:
    code, out, err = sluice("index", "notes", "--output", "my", "--only", "bm25")
    assert code == 0, err
    assert "bm25: indexing" in err
    assert out.splitlines()[-1] == 'search it: sluice search my/retrievers/bm25 "your question"'
    assert "3.md" in sluice("search", "my/retrievers/bm25", "word3", "-k", 1)[1]


def test_a_table_with_named_columns(sluice: Call, here: Path) -> None:
    code, out, err = sluice("index", "docs.csv", "--bm25", "--output", "my")
    assert code == 2
    assert "cannot tell which column holds the text" in err
    words = ("--bm25", "--id", "nr", "--text", "reply", "--text", "ask", "--metadata", "nr")
    code, out, err = sluice("index", "docs.csv", *words)
    assert code == 0, err
    assert "docs.csv: id from 'nr', text from 'reply' and 'ask', metadata: nr" in err
    code, out, _ = sluice("search", "runs/docs", "gold")
    assert (code, " 7" in out) == (0, True)
    code, out, _ = sluice("data", "docs.csv")
    assert code == 2
    (here / "faq.csv").write_text("id,text\n1,gold\n")
    code, out, err = sluice("data", "faq.csv")
    assert (code, '"documents": 1' in out) == (0, True)
    assert sluice("data", "notes")[0] == 0


def test_row_numbers_change_no_index(sluice: Call, here: Path) -> None:
    (here / "rows.csv").write_text("text,year\ngold,1\nriver,2\n")
    (here / "new.csv").write_text("text,year\nunrelated,3\n")
    assert sluice("index", "rows.csv", "--bm25", "--output", "my")[0] == 0
    for command in ("update", "add"):
        code, _, err = sluice(command, "my", "new.csv")
        assert (code, "new.csv: no ids, only row numbers" in err, "'id'" in err) == (2, True, True)
    with pytest.raises(DataError, match="no ids, only row numbers"):
        Retriever.open(here / "my" / "retrievers" / "bm25").update(["unrelated"])
    assert '"doc_id": "0"' in sluice("search", "my", "gold", "--json")[1]
    (here / "new.csv").write_text("id,text\n9,unrelated\n")
    assert "1 added, 0 replaced, 0 unchanged, 3 documents" in sluice("update", "my", "new.csv")[1]


def test_a_file_of_an_indexed_folder_keeps_its_id(
    sluice: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "notes" / "sub").mkdir()
    (here / "notes" / "sub" / "a.md").write_text("gold in the river\n")
    assert sluice("index", "notes", "--bm25", "--output", "my")[0] == 0
    (here / "notes" / "sub" / "a.md").write_text("silver in the river\n")
    (here / "link").symlink_to(here / "notes")
    monkeypatch.chdir(here / "notes" / "sub")
    for turn, source in enumerate(
        ("a.md", ".", "../../notes/sub/*.md", here / "link" / "sub" / "a.md")
    ):
        (here / "notes" / "sub" / "a.md").write_text(f"silver in the river {turn}\n")
        assert "0 added, 1 replaced, 0 unchanged, 7" in sluice("update", here / "my", source)[1]
    out = sluice("search", here / "my", "silver", "--json")[1]
    assert (out.count('"doc_id"'), '"doc_id": "sub/a.md"' in out) == (1, True)
    code, _, err = sluice("update", here / "my", ".", "--sync")
    assert (code, "a part of " in err, "give the whole folder" in err) == (2, True, True)
    (here / "0.md").write_text("beside the folder, so by its own name\n")
    assert "0 added, 1 replaced" in sluice("update", here / "my", here / "0.md")[1]


@pytest.mark.thorough
def test_a_folder_is_kept_in_step(sluice: Call, here: Path, bert: Path) -> None:
    """What is found equals a new index: of BM25, of passages, of their fusion; ties too."""
    for number in range(6, 17):
        (here / "notes" / f"{number}.md").write_text(f"# Note\nwater {number % 3}\n")
    options = ("--model", bert)
    assert sluice("index", "notes", "--output", "my", *options)[0] == 0
    (here / "notes" / "0.md").unlink()
    (here / "notes" / "5.md").unlink()
    (here / "notes" / "1.md").write_text("# Note 1\nwater again\n## Use\nriver\n")
    for name in ("sub", "07", "99"):
        (here / "notes" / f"{name}.md").write_text("# Note\nwater 1\n")
    assert sluice("add", "my", "notes/99.md")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (here / "my").rglob("*.json")}
    code, out, err = sluice("update", "my", "notes", "--sync", "--dry-run")
    assert (code, out) == (0, "my: 2 new, 1 changed, 2 gone, 15 unchanged\n"), err
    assert {path: path.stat().st_mtime_ns for path in (here / "my").rglob("*.json")} == before
    code, out, err = sluice("update", "my", "notes", "--sync")
    assert out == "my: 2 added, 1 replaced, 2 deleted, 15 unchanged, 18 documents\n", err
    assert sluice("index", "notes", "--output", "fresh", *options)[0] == 0
    for words in ("water", "note", "river use", "water 1"):
        for k in (3, 30):
            for pipeline in ("bm25", "dense", "hybrid"):
                asked = (words, "-k", k, "--pipeline", pipeline, "--json")
                found = [sluice("search", name, *asked)[1] for name in ("my", "fresh")]
                assert found[0] == found[1], asked
    code, out, err = sluice("search", "my", "water")
    assert err.count("18 documents, 3 added, 1 replaced, 2 deleted since the build") == 1
    assert "last pipeline" not in err  # the hybrid is what such a folder is for
    code, out, _ = sluice("update", "my", "notes")
    assert out == "my: 0 added, 0 replaced, 18 unchanged, 18 documents\n"
    code, _, err = sluice("index", "notes", "--output", "my", *options)
    assert (code, "`sluice update my SOURCE --sync`" in err) == (2, True)


def test_a_sync_deletes_no_document_whose_file_cannot_be_read(
    sluice: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file, a broken link and a folder that is refused are no deletions."""
    for place in ("links/a.md", "refused/b.md"):
        (here / "notes" / place).parent.mkdir()
        (here / "notes" / place).write_text("stone\n")
    assert sluice("index", "notes", "--bm25", "--output", "my")[0] == 0
    notes, scandir = here / "notes", os.scandir

    def refusing(path: str) -> Any:
        if str(path).endswith("refused"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    kept = [notes / name for name in ("0.md", "1.md", "links/a.md")]
    texts = [path.read_bytes() for path in kept]
    kept[0].write_bytes(b"\0\1\2" * 99)
    kept[1].unlink()
    kept[1].symlink_to("nowhere.md")
    kept[2].unlink()
    kept[2].parent.rmdir()
    kept[2].parent.symlink_to("/nowhere")
    said = ""
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refusing)
        for more in ((), ("--dry-run",), ("--delete-most",)):
            code, _, err = sluice("update", "my", "notes", "--sync", *more)
            assert code == 2
            assert "would delete 4 documents whose files are there but cannot be read" in err
            said += err
    for reason in ("1 behind broken links (1.md)", "1 not readable (Permission denied) (refused)"):
        assert reason in said
    retriever = here / "my" / "retrievers" / "bm25"
    assert len(Retriever.open(retriever)) == 8
    assert sluice("delete", "my", "1.md")[::2] == (0, "")  # given up; it is not asked for again
    kept[2].parent.unlink()
    kept[2].parent.mkdir()
    for path, text in zip(kept[::2], texts[::2], strict=True):
        path.write_bytes(text)
    code, out, err = sluice("update", "my", "notes", "--sync")
    assert (code, "0 added, 0 replaced, 0 deleted, 7 unchanged" in out) == (0, True), err


def test_a_sync_deletes_nothing_behind_a_link_that_was_allowed(sluice: Call, here: Path) -> None:
    (here / "other").mkdir()
    (here / "other" / "x.md").write_text("stone\n")
    (here / "notes" / "linked").symlink_to(here / "other")
    options = ("--allow", here / "other")
    assert sluice("index", "notes", "--bm25", "--output", "my", *options)[0] == 0
    code, _, err = sluice("update", "my", "notes", "--sync")
    assert (code, "which --allow PATH follows (linked)" in err) == (2, True)
    assert "would delete 1 document whose file is there but cannot be read (linked/x.md)" in err
    assert "0 deleted" in sluice("update", "my", "notes", "--sync", *options)[1]


def test_a_table_that_cannot_be_read_stops_a_sync(sluice: Call, here: Path) -> None:
    (here / "parts").mkdir()
    for name in "abc":
        (here / "parts" / f"{name}.csv").write_text(f"id,text\n{name},gold\n")
    assert sluice("index", "parts", "--bm25", "--output", "my")[0] == 0
    (here / "parts" / "b.csv").unlink()
    (here / "parts" / "b.csv").symlink_to("nowhere.csv")
    code, _, err = sluice("update", "my", "parts", "--sync")
    assert (code, "1 behind broken links (b.csv)" in err) == (2, True)
    assert "would delete 1 document whose file is there but cannot be read (b)" in err
    (here / "parts" / "b.csv").unlink()
    assert "1 deleted" in sluice("update", "my", "parts", "--sync")[1]


def test_a_source_that_lost_most_deletes_nothing(sluice: Call, here: Path) -> None:
    assert sluice("index", "notes", "--bm25", "--output", "my")[0] == 0
    (here / "empty").mkdir()
    assert sluice("update", "my", "empty", "--sync")[0] == 2
    (here / "other").mkdir()
    (here / "other" / "0.md").write_text("another one\n")
    code, _, err = sluice("update", "my", "other", "--sync")
    assert (code, "5 of its 6 documents are not in the source" in err) == (2, True)
    assert sluice("update", "my", "other", "--sync", "--dry-run")[0] == 0
    assert sluice("update", "my", "other", "--delete-most")[0] == 2
    assert len(Retriever.open(here / "my" / "retrievers" / "bm25")) == 6
    code, out, _ = sluice("update", "my", "other", "--sync", "--delete-most")
    assert "0 added, 1 replaced, 5 deleted, 0 unchanged, 1 document\n" in out
    (here / "rows.csv").write_text("text\ngold\nriver\n")  # row numbers say which, of the whole
    assert sluice("index", "rows.csv", "--bm25", "--output", "rows")[0] == 0
    (here / "rows.csv").write_text("text\ngold\nwater\nstone\n")
    code, out, err = sluice("update", "rows", "rows.csv", "--sync")
    assert "1 added, 1 replaced, 0 deleted, 1 unchanged" in out, err


def test_columns_are_named_by_every_verb(sluice: Call, here: Path) -> None:
    """A remedy names an option that exists; the same file read otherwise is said to be that."""
    words = ("docs.csv", "--text", "reply", "--id", "nr")
    code, _, err = sluice("data", "docs.csv")
    assert (code, "name it with --text" in err, "no split" in err) == (2, True, False)
    code, out, err = sluice("data", *words)
    assert (code, "id from 'nr', text from 'reply'" in out, "text from" in err) == (0, True, False)
    assert sluice("index", *words, "--bm25", "--output", "my")[0] == 0
    (here / "new.csv").write_text("key,ask,said\n9,stone,on the hill\n")
    for verb in ("add", "update"):
        code, _, err = sluice(verb, "my", "new.csv")
        assert (code, "--text COLUMN" in err) == (2, True)
    assert "1 added" in sluice("add", "my", "new.csv", "--id", "key", "--text", "said")[1]
    code, out, _ = sluice("update", "my", "new.csv", "--id", "key", "--text", "ask")
    assert "0 added, 1 replaced" in out
    (here / "logs.jsonl").write_text('{"ticket": "a", "text": "gold"}\n')
    assert sluice("index", "logs.jsonl", "--bm25", "--output", "logs")[0] == 0
    code, _, err = sluice("index", "logs.jsonl", "--id", "ticket", "--bm25", "--output", "logs")
    said = "logs was built from logs.jsonl with other columns: id was the row's number, now ticket"
    assert (code, said in err, "it has 1 retriever: bm25" in err) == (2, True, True), err


def test_what_cannot_be_filtered_is_said_once(sluice: Call, here: Path) -> None:
    lines = [{"id": "a", "text": "gold", "meta": {"x": 1}}, {"id": "b", "text": "river"}]
    (here / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, _, err = sluice("index", "x.jsonl", "--bm25", "--output", "x")
    assert err.count("left out 1 metadata value that no filter can use (meta: 1)") == 1
    (here / "p.csv").write_text("id;text;Preis €;n\n1;gold;12,50;1\n2;river;13;2\n")
    _, _, err = sluice("index", "p.csv", "--bm25", "--output", "p")
    assert err.count("metadata: Preis €, n; Preis €: numbers with a comma, read as text; ") == 1
    code, _, err = sluice("search", "p", "gold", "--where", "Preis €>=13")
    assert (code, "numbers with a comma, read as text" in err) == (2, True)
    code, _, err = sluice("search", "p", "gold", "--where", "n>=x")
    assert (code, "comma" in err) == (2, False)


def test_the_primary_key_is_the_id(sluice: Call, here: Path) -> None:
    with sqlite3.connect(here / "x.sqlite") as base:
        base.execute("create table one (url text, nr integer primary key, text text)")
        base.execute("insert into one values ('u', 7, 'gold')")
        base.execute("create table two (a text, b text, text text, primary key (a, b))")
        base.execute("insert into two values ('k', 'l', 'gold')")
        base.execute("create table three (a real primary key, text text)")
        base.execute("insert into three values (1.5, 'gold')")
    base.close()
    for table, chosen in (("one", "id from 'nr'"), ("two", "row's"), ("three", "row's")):
        _, _, err = sluice("index", f"x.sqlite#{table}", "--bm25", "--output", table)
        assert chosen in err
    assert '"doc_id": "7"' in sluice("search", "one", "gold", "--json")[1]
    _, _, err = sluice("index", "x.sqlite#one", "--id", "url", "--bm25", "--output", "other")
    assert "id from 'url'" in err


def test_a_pipe(sluice: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = types.SimpleNamespace(buffer=io.BytesIO(b"gold in the river\nwater\n"))
    monkeypatch.setattr("sys.stdin", stream)
    assert sluice("index", "-", "--bm25", "--output", "my")[0] == 0
    code, out, _ = sluice("search", "my", "gold")
    assert (code, "gold in the river" in out) == (0, True)
    assert (here / "my" / "documents.jsonl").read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search", "notes", "gold"), "notes: documents, not a retriever folder; .* sluice index "),
        (("search", "docs.csv", "gold"), "docs.csv: documents, not a retriever folder"),
        (("index", "note"), "note: no such file"),
        (("index", "notes", "seed=1"), "seed=1: KEY=VALUE goes with a YAML file"),
        (("index", "notes", "--bm25", "--model", "x"), "--model: goes without --bm25"),
        (("index", "notes", "--bm25", "--language", "xx"), "xx"),
        (("index", "notes", "--model", "./none"), "no such model folder.*: --bm25"),
        (("index", "notes", "--text", "a"), "text=.* names a column, and files of text have none"),
        (("index", "x.yaml", "--text", "a"), "--text: is for documents, not for a YAML file"),
        (("evaluate", "y.yaml"), "notes: a folder without corpus.jsonl.*sluice index notes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes(sluice: Call, here: Path, words: tuple[str, ...], message: str) -> None:
    import re

    (here / "y.yaml").write_text("dataset: notes\nretrievers: {bm25: bm25}\n")
    code, _, err = sluice(*words)
    assert code == 2
    assert re.search(message, err), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("output", "bytes_of_a_file", "fault", "remedy"),
    [
        ("/proc/none/my", None, "No such file or directory", "or a place where it can be made"),
        ("my", 600, "File too large", "raise the limit for the size of files (ulimit -f)"),
    ],
)
def test_what_cannot_be_written_says_what_remains_and_what_to_do(
    sluice: Call, here: Path, output: str, bytes_of_a_file: int | None, fault: str, remedy: str
) -> None:
    resource = pytest.importorskip("resource")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if bytes_of_a_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, usual[1]))
        code, _, err = sluice("index", "notes", "--bm25", "--output", output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert code == 2
    assert f": {fault}; what was complete before is unchanged; " in err
    assert err.strip().endswith(f"{remedy}, and run the command again")
    assert not (here / "my" / "results.json").exists()


def test_links_out_of_the_notes_are_not_indexed(sluice: Call, here: Path) -> None:
    (here / "secret").mkdir()
    (here / "secret" / "key.txt").write_text("zebra")
    (here / "notes" / "key.txt").symlink_to(here / "secret" / "key.txt")
    index = ("index", "notes", "--bm25", "--output")
    code, _, err = sluice(*index, "closed")
    assert code == 0, err
    assert (
        "notes: left out: 1 behind links that lead out of it, which --allow PATH follows (key.txt)"
        in err
    )
    assert "zebra" not in sluice("search", "closed", "zebra")[1]
    assert sluice("update", "closed", "notes")[0] == 0
    assert "zebra" not in sluice("search", "closed", "zebra")[1]
    assert sluice("update", "closed", "notes", "--allow", "secret")[0] == 0
    assert "zebra" in sluice("search", "closed", "zebra")[1]
    assert json.loads(sluice("data", "notes")[1])["documents"] == 6
    assert json.loads(sluice("data", "notes", "--allow", "secret")[1])["documents"] == 7
    assert sluice(*index, "open", "--allow", "secret")[0] == 0
    assert "zebra" in sluice("search", "open", "zebra")[1]
    assert yaml.safe_load((here / "open" / "experiment.yaml").read_text())["dataset"] == {
        "corpus": str(here / "notes"), "allow": [str(here / "secret")],
    }  # fmt: skip
    for allow, count in (((), 6), ([str(here / "secret")], 7)):  # the reader's word, not a folder's
        assert len(list(open_experiment("open", allow=allow).dataset(None).corpus)) == count
    assert sluice("index", "open/experiment.yaml")[0] == 0  # the same corpus
    refused = sluice("index", "open/experiment.yaml", "--allow", "secret")
    assert refused[0] == 2
