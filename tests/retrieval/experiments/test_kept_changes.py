"""Documents that were added stay: in every retriever, through every verb, whatever breaks off."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError, SluiceError
from sluice.retrieval import Document, Retriever, index, load_pipeline, run
from sluice.retrieval.experiments.output import changes
from sluice.retrieval.experiments.output.changes import (
    add_documents,
    delete_documents,
    undo_interrupted,
    update_documents,
)
from sluice.retrieval.jobs import tune
from sluice.retrieval.retrievers.shards import folder as opening

NEW = [Document("new1", "", "brandnew words"), Document("new2", "A", "brandnew things, longer")]
NAMES = ("one", "two")


def config(tmp_path: Path, **parts: Any) -> dict[str, Any]:
    """Two BM25 retrievers, a fusion and a cascade."""
    return {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {
            name: {"encoder": {"type": "bm25", "k1": 1.0 + place}}
            for place, name in enumerate(NAMES)
        },
        "rerankers": {"length": {"type": "small_world:LengthScorer"}},
        "pipelines": {"fused": "one | two", "cascade": "(one | two) % 50 >> length"},
        "evaluate": {"latency_queries": 0, "report": False},
        **parts,
    }


def held(output: Path) -> list[int]:
    return [len(Retriever.open(output / "retrievers" / name)) for name in NAMES]


def found(output: Path, pipeline: str, query: str = "brandnew") -> set[str]:
    stage = load_pipeline(output, pipeline, allow=["small_world:LengthScorer"])
    return {hit.doc_id for hit in stage.search(query, 5) if hit.doc_id.startswith("new")}


def test_what_was_added_is_found_by_every_pipeline_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    run(values)
    runs = {file.name: file.read_bytes() for file in (output / "runs").glob("*.json")}
    counts = add_documents(output, iter(NEW))
    assert [(each.path.name, each.added, each.documents) for each in counts] == [
        (name, 2, 42) for name in NAMES
    ]
    assert not (output / ".change").exists()
    for pipeline in ("fused", "cascade"):
        assert found(output, pipeline) == {"new1", "new2"}
    texts = load_pipeline(output, "cascade", allow=["small_world:LengthScorer"]).search("brandnew")
    longer = max(NEW, key=lambda each: len(each.full_text))
    assert (texts[0].doc_id, texts[0].full_text) == (longer.id, longer.full_text)
    caplog.clear()
    with caplog.at_level(logging.INFO, "sluice"):
        run(values)
        index(values)
    said = caplog.text.count("out: 42 documents, 2 added since the build")
    assert said == 2, "once in each, not for each retriever"
    assert "reusing" not in caplog.text
    assert held(output) == [42, 42]
    assert {file.name: file.read_bytes() for file in (output / "runs").glob("*.json")} != runs
    results = json.loads((output / "results.json").read_text())
    assert results["systems"][0]["changes"] == dict.fromkeys(NAMES, "2 added")
    caplog.clear()
    with caplog.at_level(logging.INFO, "sluice"):
        run(values)
    assert "fused: reusing the saved run" in caplog.text
    assert "hold different documents" not in caplog.text


@pytest.mark.thorough
def test_a_rebuild_that_would_lose_documents_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    run(values)
    update_documents(output, [*NEW, Document("d00", "", "brandnew too")])
    delete_documents(output, ["d01"], compact=True)
    other = {"encoder": {"type": "bm25", "k1": 3.0}}
    changed = {**values, "retrievers": {**values["retrievers"], "one": other}}
    message = (
        r"a rebuild would lose .*: one \(2 added, 1 replaced, 1 deleted\).*"
        "output=OTHER.*--rebuild"
    )
    for job in (run, index, lambda values: tune({**values, "tune": {"queries": 2}})):
        with pytest.raises(ConfigError, match=message):
            job(changed)
    assert held(output) == [41, 41]
    assert len(index(changed, only=["two"])[0]) == 41, "that one is as it was built"
    os.utime(tmp_path / "data" / "corpus.jsonl", ns=(1, 1))
    with pytest.raises(ConfigError, match=r"a rebuild would lose.*files they name"):
        run(values)
    run(changed, rebuild=True)
    assert "rebuilding without the changes: 2 added, 1 replaced, 1 deleted" in caplog.text
    assert held(output) == [40, 40]
    assert found(output, "fused") == set()
    add_documents(output, NEW)
    run(changed, rebuild=True)  # with the same settings too
    assert held(output) == [40, 40]
    files = sorted((output / "runs").glob("*.json"))
    before = [file.stat().st_mtime_ns for file in files]
    run(changed)
    assert [file.stat().st_mtime_ns for file in files] == before, "the runs are of the rebuilt"


@pytest.mark.thorough
def test_an_error_in_any_retriever_leaves_all_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    index(config(tmp_path))
    heads = {name: (output / "retrievers" / name / "retriever.json") for name in NAMES}
    before = {name: file.read_bytes() for name, file in heads.items()}
    one = Retriever.open(output / "retrievers" / "one")
    real = opening.write_head

    for broken in NAMES:

        def write_head(path: Path, head: Any, broken: str = broken) -> None:
            if path.name == broken:
                raise OSError("no space left")
            real(path, head)

        for change in (
            lambda: update_documents(output, [*NEW, Document("d00", "", "brandnew")]),
            lambda: delete_documents(output, ["d00", "d01"]),
            lambda: update_documents(output, [*list(one)[5:], *NEW], sync=True),
        ):
            monkeypatch.setattr(opening, "write_head", write_head)
            with pytest.raises(OSError, match="no space"):
                change()
            monkeypatch.setattr(opening, "write_head", real)
            assert {name: file.read_bytes() for name, file in heads.items()} == before
            assert not (output / ".change").exists()
    assert held(output) == [40, 40]
    assert found(output, "fused") == set()
    add_documents(output, NEW)
    assert found(output, "fused") == {"new1", "new2"}


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


def killed_at(
    step: int, output: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Document] | None = None
) -> None:
    """Add ``NEW`` until the ``step``-th retriever has it, and die there (the journal stays).

    ``synced`` are documents that all hold then, and no others.
    """
    verb = "add" if synced is None else "update"
    calls, real = 0, getattr(Retriever, verb)

    def change(retriever: Retriever, documents: Any, **options: Any) -> Any:
        nonlocal calls
        if calls == step:
            raise Killed
        calls += 1
        return real(retriever, documents, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Retriever, verb, change)
        patch.setattr(changes, "_undo", lambda *_: None)
        if step == len(NAMES):
            patch.setattr(Path, "unlink", dying)
        with pytest.raises(Killed):
            if synced is None:
                add_documents(output, NEW)
            else:
                update_documents(output, synced, sync=True)


def dying(path: Path, missing_ok: bool = False) -> None:
    if path.name == "journal.json":
        raise Killed
    os.unlink(path)  # noqa: PTH108  Path.unlink is what this stands for


@pytest.mark.thorough
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_killed_addition_is_reported_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: int
) -> None:
    output = tmp_path / "out"
    index(config(tmp_path))
    killed_at(step, output, monkeypatch)
    assert held(output) == [42] * step + [40] * (2 - step)
    journal = output / ".change" / "journal.json"
    facts = json.loads(journal.read_text())
    journal.write_text(json.dumps({**facts, "process": 2**22 + 1}))
    load_pipeline(output, "fused", allow=["small_world:LengthScorer"])
    reported = "an interrupted sluice add has not reached" in caplog.text
    assert reported == (step < 2)
    assert held(output) == [42] * step + [40] * (2 - step), "reading writes nothing"
    counts = add_documents(output, NEW)  # the same command again
    assert [each.documents for each in counts] == [42, 42]
    assert held(output) == [42, 42]
    assert found(output, "fused") == {"new1", "new2"}
    assert ("had reached every retriever" in caplog.text) == (step == 2)
    assert not (output / ".change").exists()
    with pytest.raises(DataError, match=r"'new1' is already there.*sluice update"):
        add_documents(output, NEW)


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_killed_sync_ends_with_the_same_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: int,
    shards: int | None,
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    for section in values["retrievers"].values():
        section["shards"] = shards
    index(values)
    docs = list(Retriever.open(output / "retrievers" / "one"))[5:] + NEW
    dry = update_documents(output, docs, sync=True, dry_run=True)
    assert [(each.added, each.deleted, each.unchanged) for each in dry] == [(2, 5, 35)] * 2
    assert held(output) == [40, 40]
    assert not (output / ".change").exists()
    killed_at(step, output, monkeypatch, docs)
    assert held(output) == [37] * step + [40] * (2 - step)
    if step == 1:  # another command puts the first one back
        assert [each.added for each in add_documents(output, NEW)] == [2, 2]
        assert "undid an interrupted update --sync, which had not reached two" in caplog.text
    changed = update_documents(output, docs, sync=True)
    assert [each.documents for each in changed] == [37, 37]
    assert held(output) == [37, 37]
    assert found(output, "fused") == {"new1", "new2"}
    assert not (output / ".change").exists()
    changed = update_documents(output, docs, sync=True)
    assert [each.unchanged for each in changed] == [37, 37]
    with pytest.raises(DataError, match="more than half; nothing was changed"):
        update_documents(output, [], sync=True)
    assert held(output) == [37, 37]


def test_a_build_or_a_change_of_one_retriever_undoes_a_killed_addition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    index(values)
    killed_at(1, output, monkeypatch)
    run(values)
    assert "undid an interrupted add, which had not reached two" in caplog.text
    assert held(output) == [40, 40]
    killed_at(1, output, monkeypatch)
    add_documents(output / "retrievers" / "one", NEW[:1])
    assert held(output) == [41, 40]
    delete_documents(output, ["new1"])
    killed_at(0, output, monkeypatch)
    (output / ".change" / "journal.json").write_text("{}")
    with pytest.raises(IndexFormatError, match="not as Sluice writes it"):
        undo_interrupted(output)


def test_a_killed_addition_that_cannot_be_undone_ends_with_a_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    index(values)
    killed_at(1, output, monkeypatch)
    Retriever.open(output / "retrievers" / "one").compact()  # frees what the undoing would need
    message = r"interrupted sluice add cannot be undone .*before it is gone.*--rebuild, or delete"
    for refused in (
        lambda: add_documents(output, NEW),
        lambda: index(values),
        lambda: index(values, only=["two"], rebuild=True),
    ):
        with pytest.raises(IndexFormatError, match=message):
            refused()
    assert held(output) == [42, 40]
    index(values, rebuild=True)
    assert held(output) == [40, 40]
    assert [each.documents for each in add_documents(output, NEW)] == [42, 42]


@pytest.mark.thorough
@pytest.mark.parametrize("changed", NAMES)
def test_a_killed_addition_followed_by_another_change_is_not_undone_in_part(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    index(values)
    killed_at(1, output, monkeypatch)  # one has it, two has not
    Retriever.open(output / "retrievers" / changed).add([Document("own", "", "text")])
    before = held(output)
    for refused in (lambda: add_documents(output, NEW), lambda: run(values)):
        with pytest.raises(
            IndexFormatError, match=rf"{changed}: .*add cannot .*again since.*--reb"
        ):
            refused()
    assert held(output) == before
    found(output, "fused")
    assert "cannot be undone (its documents were changed again since)" in caplog.text
    assert "undid" not in caplog.text
    index(values, rebuild=True)
    assert held(output) == [40, 40]


def test_different_documents_are_said_and_an_update_heals_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    index(values)
    add_documents(output / "retrievers" / "one", NEW)
    found(output, "fused")
    difference = (
        "fused: its retrievers hold different documents (one 42 documents, two 40 documents)"
        ". sluice update"
    )
    assert difference in caplog.text
    with pytest.raises(DataError, match=r"'new1' is already in one, not in the others"):
        add_documents(output, NEW)
    Retriever.open(output / "retrievers" / "one").delete(["d00", "d01"])  # as many, but others
    caplog.clear()
    found(output, "fused")
    assert "hold different documents" in caplog.text
    with pytest.raises(DataError, match=r"no document 'nobody'; nothing was deleted"):
        delete_documents(output, ["d05", "nobody"])
    delete_documents(output, ["d00", "d01", "d05"])  # one lacks two of them
    update_documents(output, NEW)
    caplog.clear()
    assert found(output, "fused") == {"new1", "new2"}
    assert "hold different documents" not in caplog.text
    assert held(output) == [39, 39]


def test_a_change_needs_all_retrievers_of_an_experiment(tmp_path: Path) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    index(values, only=["one"])
    with pytest.raises(ConfigError, match=r"two not built yet.*retrievers/one"):
        add_documents(output, NEW)
    with pytest.raises(IndexFormatError, match="expected a retriever folder or an"):
        add_documents(tmp_path / "data", NEW)
    (tmp_path / "suite" / "datasets" / "a").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"several datasets; name one of them.*\(a\)"):
        add_documents(tmp_path / "suite", NEW)


def test_a_folder_changed_by_an_earlier_version_is_kept(tmp_path: Path) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    index(values)
    add_documents(output, NEW)
    file = output / "retrievers" / "one" / "retriever.json"
    head = json.loads(file.read_text())
    del head["origin"]["changes"]
    head["origin"]["config"]["key"] = None
    file.write_text(json.dumps(head))
    assert len(index(values)[0]) == 42
    other = {**values, "seed": 14}
    with pytest.raises(ConfigError, match=r"one \(others changed\), two \(2 added\)"):
        run(other)


def test_another_dataset_is_refused_before_any_work(tmp_path: Path) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    run(values)
    before = (output / "results.json").read_bytes()
    other = {**values, "dataset": str(write_beir(tmp_path / "second"))}
    message = (
        r"output: .*out holds parts of dataset .*data', not of dataset .*second'; it has "
        r"2 retrievers: one, two; 2 runs: cascade, fused; results.json; .*-second.*--rebuild"
    )
    jobs = (run, index, lambda values: tune({**values, "tune": {"queries": 2}}))
    for job in jobs:
        with pytest.raises(ConfigError, match=message):
            job(other)
    with pytest.raises(ConfigError, match=message):
        (output / "experiment.yaml").unlink()  # the results name it too
        run(other)
    assert (output / "results.json").read_bytes() == before
    run({**values, "dataset": os.path.relpath(values["dataset"])})  # the same one, spelled anew
    run(other, rebuild=True)
    run(other)
    assert json.loads((output / "results.json").read_text())["dataset"] == "second"


def test_a_rebuild_over_another_dataset_leaves_none_of_its_parts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    run(values)
    (output / "notes.txt").write_text("not ours")
    (output / "models" / "old").mkdir(parents=True)
    lost = {**values, "dataset": str(tmp_path / "nowhere")}
    with pytest.raises(SluiceError, match="nowhere"):
        index(lost, rebuild=True)
    assert (output / "results.json").exists()
    other = {**values, "dataset": str(write_beir(tmp_path / "second"))}
    with caplog.at_level(logging.WARNING, "sluice"):
        index(other, only=["one"], rebuild=True)
    assert (
        f"{output}: removing the parts of dataset '{values['dataset']}': 1 model: old; "
        "2 retrievers: one, two; 2 runs: cascade, fused; results.json"
    ) in caplog.messages
    left = {path.name for path in output.iterdir()}
    assert left == {"experiment.yaml", "retrievers", "notes.txt"}
    assert [path.name for path in (output / "retrievers").iterdir()] == ["one"]
    caplog.clear()
    index(other, rebuild=True)
    assert not any("removing" in text for text in caplog.messages)


def test_the_output_is_named_after_the_dataset(tmp_path: Path) -> None:
    from sluice.retrieval.experiments.suites.suite import evaluate_suite

    values = {**config(tmp_path), "output": str(tmp_path / "{dataset}" / "of-{dataset}")}
    run(values)
    assert (tmp_path / "data" / "of-data" / "results.json").exists()
    both = {**values, "dataset": [str(tmp_path / "data"), str(write_beir(tmp_path / "second"))]}
    both["output"] = str(tmp_path / "s-{dataset}")
    assert evaluate_suite(both).output == tmp_path / "s-data-second"
    with pytest.raises(ConfigError, match=r"holds parts of 2 datasets \(data-second\), not of"):
        run({**values, "output": str(tmp_path / "s-data-second")})
    with pytest.raises(ConfigError, match=r"unknown placeholder \{seed\}"):
        run({**values, "output": "runs/{seed}"})


def test_an_unfinished_run_can_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, output = config(tmp_path), tmp_path / "out"
    real = Retriever.build

    def build(*args: Any, **options: Any) -> Retriever:
        if options["name"] == "two":
            raise Killed
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Retriever, "build", build)
        with pytest.raises(Killed):
            run(values)
    assert yaml.safe_load((output / "experiment.yaml").read_text())["pipelines"]
    load = {"allow": ["small_world:LengthScorer"]}
    assert load_pipeline(output, "one", **load).search("gold")  # type: ignore[arg-type]
    with pytest.raises(IndexFormatError, match="two: does not exist"):
        load_pipeline(output, "fused", **load)  # type: ignore[arg-type]


def test_latencies_of_different_sessions_are_dated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.retrieval.experiments import system

    values = config(tmp_path, evaluate={"latency_queries": 3, "report": False})
    first = {**values, "pipelines": {"one": "one"}}
    assert "sessions" not in run(first)[0].caption
    monkeypatch.setattr(system, "_session", lambda: "later")
    table, _ = run({**values, "pipelines": {"one": "one", "two": "two"}})
    assert "measured in 2 sessions, whose load may have differed: one 20" in table.caption
