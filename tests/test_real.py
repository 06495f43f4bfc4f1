"""``scripts/real`` on made-up repositories: what is converted, refused, kept, and its page."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from places import ROOT

from sluice import load_dataset
from sluice.encoders.foundation.errors import DataError

COMMIT = "0" * 40
SHARES = {
    "a": {"original_text": "we keep mail", "reference_summary": "mail is kept."},
    "b": {"original_text": "we keep mail forever", "reference_summary": "mail is kept."},
    "c": {"original_text": "welcome", "reference_summary": "hi."},
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        import real
        import real_data
        import real_rows

        yield real, real_data, real_rows


@pytest.fixture
def clones(
    tmp_path: Path,
    scripts: tuple[ModuleType, ModuleType, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A folder with a copy of one repository, and a source that knows its hash."""
    _, data, _ = scripts
    text = json.dumps(SHARES)
    (tmp_path / "clones/made_up").mkdir(parents=True)
    (tmp_path / "clones/made_up/all.json").write_text(text)
    source = data.Source("someone/made_up", COMMIT, {"all.json": _sha(text)},
                         data.legal_summarization)  # fmt: skip
    monkeypatch.setitem(data.SOURCES, "made-up", source)
    return tmp_path / "clones"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_summaries_lose_the_vague_ones_and_share_a_query(
    clones: Path, tmp_path: Path, scripts: tuple[ModuleType, ModuleType, ModuleType]
) -> None:
    _, data, _ = scripts
    folder = data.converted("made-up", clones, tmp_path / "data")
    dataset = load_dataset(str(folder))
    assert dataset.queries == {"q0": "mail is kept."}
    assert dataset.qrels == {"q0": {"d0": 1, "d1": 1}}
    assert [each.text for each in dataset.corpus] == ["we keep mail", "we keep mail forever"]
    (clones / "made_up/all.json").unlink()
    assert data.converted("made-up", clones, tmp_path / "data") == folder  # made before


def test_another_content_is_refused(
    clones: Path, tmp_path: Path, scripts: tuple[ModuleType, ModuleType, ModuleType]
) -> None:
    _, data, _ = scripts
    (clones / "made_up/all.json").write_text("{}")
    with pytest.raises(DataError, match=r"all\.json: sha256 44136fa355b3678a\.\.\., expected"):
        data.converted("made-up", clones, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_missing_clone_is_named_with_the_command_that_brings_it(
    tmp_path: Path, clones: Path, scripts: tuple[ModuleType, ModuleType, ModuleType]
) -> None:
    _, data, _ = scripts
    with pytest.raises(DataError, match=rf"git clone https://\S+/someone/made_up .* {COMMIT}"):
        data.converted("made-up", tmp_path / "nowhere", tmp_path / "data")


def test_a_task_gives_its_description_and_its_solution(
    scripts: tuple[ModuleType, ModuleType, ModuleType],
) -> None:
    _, data, _ = scripts
    prompt = 'def add(a, b):\n    """ Add two\n    numbers.\n    >>> add(1, 2)\n    3\n    """\n'
    task = {"task_id": "HumanEval/1", "prompt": prompt, "canonical_solution": "    return a + b\n"}
    lines = [json.dumps(each) for each in (task, {**task, "task_id": "HumanEval/10"})]
    found = data.human_eval([gzip.compress("\n".join(lines).encode())])
    assert found.queries == {"q0": "Add two numbers."}
    assert found.corpus == {"d0": "return a + b"}


def test_equal_questions_are_one_without_the_blanks_around_them(
    scripts: tuple[ModuleType, ModuleType, ModuleType],
) -> None:
    _, data, _ = scripts
    paragraphs = [
        {"context": f" {text}", "qas": [{"question": "Who? "}, {"question": "Who?"}]}
        for text in ("One.", "Two.")
    ]
    found = data.xquad([json.dumps({"data": [{"paragraphs": paragraphs}]}).encode()])
    assert found.queries == {"q0": "Who?"}
    assert found.corpus == {"d0": "One.", "d1": "Two."}
    assert found.qrels == {"q0": {"d0": 1, "d1": 1}}


def test_a_finished_row_is_kept_until_the_collection_changes(
    clones: Path, tmp_path: Path, scripts: tuple[ModuleType, ModuleType, ModuleType]
) -> None:
    real, _, rows = scripts
    lab = real.Lab(tmp_path / "out", clones, {})
    row = rows.Row("bm25", "made-up", 0.9, "a paper", note="a made-up figure")
    first = lab.measured(row)
    assert first["measures"] == {"nDCG@10": 1.0, "R@100": 1.0}
    file = lab.file(row)
    file.write_text(json.dumps({**first, "seconds": 99}))
    assert lab.measured(row)["seconds"] == 99
    file.write_text(json.dumps({**first, "key": {}, "seconds": 99}))
    assert lab.measured(row)["seconds"] < 99
    page = real.page([(row, first)])
    assert "| BM25 |  |  | made-up | 2 / 1 | 0.9000 | 1.0000 | +0.1000 | **no** | 1.0000 |" in page
    assert "**0 of 1 published figures" in page
    assert "- made-up: a made-up figure" in page
    assert "- a paper" in page


def test_every_source_is_pinned_and_every_row_has_one(
    scripts: tuple[ModuleType, ModuleType, ModuleType],
) -> None:
    real, data, rows = scripts
    for source in data.SOURCES.values():
        assert len(source.commit) == 40
        assert all(len(sha) == 64 for sha in source.files.values())
    assert len({row.name for row in rows.ROWS}) == len(rows.ROWS)
    for row in rows.ROWS:
        assert row.system in real.NAMES
        assert bool(row.source) == (row.published is not None)
