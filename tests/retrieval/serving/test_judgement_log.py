"""The log of judgements: durable, shared, and what its entries lead to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.retrieval.runs.trec_files import read_qrels
from sluice.retrieval.serving.faults import fault_of
from sluice.retrieval.serving.judging.judgements import (
    Judgement,
    Judgements,
    Pooled,
    line_of,
    read_judgements,
)
from sluice.retrieval.serving.judging.judging import JudgementLog, Judging, in_order
from sluice.retrieval.serving.judging.results import (
    RULES,
    assessor_agreement,
    qrels_of,
    qrels_text,
    unjudged,
)

HEADER = b'{"kind": "judgements", "format": 1}\n'
POOL = Pooled("q", "gold?", ("a", "b", "c"), ("bm25",), 10)


def graded(document: str, grade: int | None, assessor: str = "ann", query: str = "q") -> Judgement:
    return Judgement(query, document, assessor, grade)


def said(state: Judgements, assessor: str = "ann", query: str = "q") -> dict[str, int | None]:
    return {document: each.grade for document, each in state.judged(query, assessor).items()}


def test_the_last_word_counts_and_is_read_back(tmp_path: Path) -> None:
    log = JudgementLog(tmp_path / "new" / "log.jsonl")
    log.add(lambda state: [POOL, graded("a", 1), graded("b", 3)])
    log.add(lambda state: [graded("a", 2), Judgement("q", "c", "ann", None, skipped=True)])
    log.add(lambda state: [Judgement("q", "ü \ud800", "bob", 0, comment='x"\n')])
    for state in (log.read(lambda state: state), read_judgements(log.path),
                  JudgementLog(log.path).read(lambda state: state)):  # fmt: skip
        assert said(state) == {"a": 2, "b": 3, "c": None}
        assert state.judged("q", "ann")["c"].skipped
        assert state.judged("q", "bob")["ü \ud800"].comment == 'x"\n'
        assert list(state.pools["q"]) == ["a", "b", "c"]
        assert state.texts == {"q": "gold?"}
        assert state.grades_of("ann") == {"q": {"a": 2, "b": 3}}
    assert all(json.loads(line)["time"] for line in log.path.read_bytes().splitlines()[1:])


def test_undoing_goes_back_step_by_step_across_restarts(tmp_path: Path) -> None:
    log = JudgementLog(tmp_path / "log.jsonl")
    steps = [graded("a", 1), graded("b", 2), graded("a", 3), graded("a", None)]
    seen = []
    for step in steps:
        seen.append(said(log.read(lambda state: state)))
        log.add(lambda state, step=step: [step])
    for before in reversed(seen):
        log = JudgementLog(log.path)
        undoing = log.read(lambda state: state.undoing("ann", {"q"}))
        assert undoing is not None
        log.add(lambda state, undoing=undoing: [undoing])
        now = {doc: grade for doc, grade in said(read_judgements(log.path)).items() if grade}
        assert now == {doc: grade for doc, grade in before.items() if grade}
    assert log.read(lambda state: state.undoing("ann", {"q"})) is None
    assert log.read(lambda state: state.undoing("nobody", {"q"})) is None


def test_undoing_in_some_queries_leaves_the_others() -> None:
    """Against a plain list: undoing among queries removes the last entry on one of them."""
    rng = np.random.default_rng(5)
    state, entries = Judgements(), list[Judgement]()
    for _ in range(400):
        if rng.random() < 0.6:
            entries.append(
                graded("abc"[rng.integers(3)], int(rng.integers(4)), query="qrs"[rng.integers(3)])
            )
            state.apply(entries[-1])
        else:
            among = {query for query in "qrs" if rng.random() < 0.5}
            last = next((e for e in reversed(entries) if e.query in among), None)
            undoing = state.undoing("ann", among)
            assert (undoing is None) == (last is None)
            if undoing is not None and last is not None:
                assert (undoing.query, undoing.document) == (last.query, last.document)
                state.apply(undoing)
                entries = [entry for entry in entries if entry is not last]
        left = {(e.query, e.document): e.grade for e in entries}
        assert left == {
            (query, document): grade
            for query, own in state.grades_of("ann").items()
            for document, grade in own.items()
        }


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    """Two processes' logs, two threads each: all entries are there, and each sees the others'."""
    logs = [JudgementLog(tmp_path / "log.jsonl") for _ in range(2)]

    def write(log: JudgementLog, name: str) -> None:
        for number in range(15):
            entry = graded(f"d{number}", number % 4, name)
            log.add(lambda state, entry=entry: [entry])

    threads = [
        threading.Thread(target=write, args=(log, f"{place}{part}"))
        for place, log in enumerate(logs)
        for part in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"d{number}": number % 4 for number in range(15)}
    for log in logs:
        state = log.read(lambda state: state)
        assert all(said(state, name) == expected for name in ("0a", "0b", "1a", "1b"))
    assert len((tmp_path / "log.jsonl").read_bytes().splitlines()) == 1 + 60


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from sluice.retrieval.serving.judging.judgements import Judgement
from sluice.retrieval.serving.judging.judging import JudgementLog
log = JudgementLog(Path(sys.argv[1]))
for number in range(10**9):
    log.add(lambda state: [Judgement("q", f"d{number}", "ann", number % 4)])
    print(number, flush=True)
"""


def test_a_kill_loses_no_acknowledged_judgement(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    command = [sys.executable, "-c", WRITER, str(path), str(Path.cwd())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
    last = int(rest.split(b"\n")[-2]) if rest.count(b"\n") else 19
    with path.open("ab") as stream:  # what a kill in the middle of a line leaves
        stream.write(b'{"kind": "judgement", "que')
    kept = said(read_judgements(path))
    assert all(kept[f"d{number}"] == number % 4 for number in range(last + 1))
    log = JudgementLog(path)  # removes the torn line, and goes on behind the last whole one
    log.add(lambda state: [graded("new", 1)])
    assert said(read_judgements(path)) == {**kept, "new": 1}


def test_a_last_line_without_an_end_is_kept_where_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(HEADER + line_of(graded("a", 1)).rstrip())
    log = JudgementLog(path)
    log.add(lambda state: [graded("b", 2)])
    assert said(read_judgements(path)) == {"a": 1, "b": 2}
    assert log.read(said) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"query-id\tcorpus-id\tscore\nq\td\t1\n", "log.jsonl:1: not a log of judgements"),
        (b"no line", "not a log of judgements"),
        (b'{"kind": "judgements", "format": 2}\n', "newer version"),
        (HEADER + b"{}\n", "log.jsonl:2: .* kind pool or judgement"),
        (HEADER + line_of(graded("a", 1)).replace(b": 1,", b": 7,"), ":2: grade is 7, expected 0"),
        (HEADER + line_of(graded("a", 1)).replace(b": 1,", b": true,"), "grade is True"),
        (HEADER + line_of(graded("a", 1)).replace(b'"a"', b"[]"), "document is \\[\\], expected a"),
        (HEADER + line_of(POOL).replace(b"10", b"0"), "depth is 0, expected 1 or more"),
        (HEADER + b"[" * 20_000 + b"\n", "log.jsonl:2"),
    ],
)
def test_other_files_are_refused_and_left_alone(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    for opened in (JudgementLog, read_judgements):
        with pytest.raises(DataError, match=message):
            opened(path)
    assert path.read_bytes() == content


def test_a_log_that_is_replaced_or_not_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    log = JudgementLog(path)
    log.add(lambda state: [graded("a", 1)])
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SluiceError, match=r"No space left .* nothing was added"):
            log.add(lambda state: [graded("b", 1)])
    assert path.read_bytes() == before
    assert log.read(said) == {"a": 1}
    path.write_bytes(before + b"garbage\n")
    with pytest.raises(SluiceError, match=r"^log\.jsonl:3: b'garbage'") as damaged:
        log.add(lambda state: [graded("b", 1)])
    fault = fault_of(damaged.value)
    assert fault is not None
    assert fault.status == 503  # the client did nothing wrong
    assert path.read_bytes() == before + b"garbage\n"
    path.write_bytes(before)
    assert log.read(said) == {"a": 1}
    path.rename(tmp_path / "moved")
    with pytest.raises(SluiceError, match="added to the file that was there"):
        log.read(said)
    path.write_bytes(before)
    with pytest.raises(SluiceError, match="another file is in its place"):
        log.add(lambda state: [graded("b", 1)])
    with pytest.raises(ConfigError, match="is a folder; give the name of a file"):
        JudgementLog(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        read_judgements(tmp_path / "none")


def state_of(*judgements: Judgement) -> Judgements:
    state = Judgements()
    for each in judgements:
        state.apply(each)
    return state


@pytest.mark.parametrize(
    ("grades", "majority", "mean"),
    [([2], 2, 2), ([0, 3], 0, 2), ([1, 1, 3], 1, 2), ([0, 1], 0, 1), ([3, 3, 0, 0, 1], 0, 1)],
)
def test_rules_for_several_judges(grades: list[int], majority: int, mean: int) -> None:
    assert mean == int(np.floor(np.mean(grades) + 0.5))
    state = state_of(*(graded("a", grade, str(place)) for place, grade in enumerate(grades)))
    expected = {"majority": majority, "mean": mean, "max": max(grades)}
    assert {rule: qrels_of(state, rule)["q"]["a"] for rule in RULES} == expected
    assert qrels_of(state, "max", ["0"]) == {"q": {"a": grades[0]}}


def test_exported_qrels_read_back(tmp_path: Path) -> None:
    state = state_of(graded("a", 1), graded("an id", 0), graded("ü", 3, "bob", "zwei"))
    state.apply(POOL)
    state.apply(Judgement("q", "b", "ann", None, skipped=True))
    qrels = qrels_of(state)
    assert qrels == {"q": {"a": 1, "an id": 0}, "zwei": {"ü": 3}}
    assert unjudged(state, qrels) == 2  # b was skipped, c not seen
    (tmp_path / "q.tsv").write_text(qrels_text(qrels), encoding="utf-8")
    assert read_qrels(tmp_path / "q.tsv") == qrels
    with pytest.raises(DataError, match="white space, which TREC's form"):
        qrels_text(qrels, "trec")
    del qrels["q"]["an id"]
    (tmp_path / "q.trec").write_text(qrels_text(qrels, "trec"), encoding="utf-8")
    assert read_qrels(tmp_path / "q.trec") == qrels
    for bad in ("a\tb", "a\nb", "a\x85"):
        with pytest.raises(DataError, match="tab or a line break"):
            qrels_text({"q": {bad: 1}})
    with pytest.raises(DataError, match="is not Unicode"):
        qrels_text({"q": {"\ud800": 1}})
    with pytest.raises(ConfigError, match="did you mean 'trec'"):
        qrels_text(qrels, "trek")
    with pytest.raises(ConfigError, match="did you mean 'majority'"):
        qrels_of(state, "majorty")
    with pytest.raises(ConfigError, match="expected one of ann, bob"):
        qrels_of(state, assessors=["an"])
    with pytest.raises(DataError, match="no document is judged yet"):
        qrels_of(state_of(graded("a", None)))


def test_agreement_by_the_definitions() -> None:
    """Kappa and alpha against their definitions, written out pair by pair."""
    rng = np.random.default_rng(3)
    names = ("ann", "bob", "cyn")
    table = [
        [int(rng.integers(4)) if rng.random() < 0.7 else None for _ in range(40)] for _ in names
    ]
    state = state_of(
        *(
            graded(f"d{place}", grade, name)
            for name, own in zip(names, table, strict=True)
            for place, grade in enumerate(own)
            if grade is not None
        ),
        Judgement("q", "d0", "dan", None, skipped=True),
    )
    found = assessor_agreement(state)
    assert [(each.name, each.skipped) for each in found.assessors] == [
        ("ann", 0), ("bob", 0), ("cyn", 0), ("dan", 1)
    ]  # fmt: skip
    assert found.assessors[0].grades == tuple(table[0].count(grade) for grade in range(4))
    units = [[own[p] for own in table if own[p] is not None] for p in range(40)]
    units = [unit for unit in units if len(unit) >= 2]
    assert found.shared == len(units)
    values = [value for unit in units for value in unit]
    for scale, distance in {
        "nominal": lambda a, b: float(a != b),
        "interval": lambda a, b: float((a - b) ** 2),
    }.items():
        observed = sum(
            distance(a, b) / (len(unit) - 1) for unit in units for a in unit for b in unit
        ) / len(values)
        expected = sum(distance(a, b) for a in values for b in values)
        alpha = 1 - observed / (expected / (len(values) * (len(values) - 1)))
        assert found.alpha[scale] == pytest.approx(alpha, abs=1e-12)
    assert len(found.two) == 3
    for two in found.two:
        both = [
            (a, b)
            for a, b in zip(
                table[names.index(two.first)], table[names.index(two.second)], strict=True
            )
            if a is not None and b is not None
        ]
        assert two.pairs == len(both)
        assert two.same == pytest.approx(sum(a == b for a, b in both) / len(both))
        for kappa, distance in ((two.kappa, lambda a, b: float(a != b)),
                                (two.weighted_kappa, lambda a, b: (a - b) ** 2)):  # fmt: skip
            seen = sum(distance(a, b) for a, b in both) / len(both)
            chance = sum(distance(a, b) for a, _ in both for _, b in both) / len(both) ** 2
            assert kappa == pytest.approx(1 - seen / chance, abs=1e-12)
    text = str(found)
    assert "cyn" in text
    assert f"{found.alpha['ordinal']:.4f}" in text


def test_agreement_without_overlap_is_unknown() -> None:
    apart = assessor_agreement(state_of(graded("a", 1), graded("b", 1, "bob")))
    assert (apart.shared, apart.two) == (0, ())
    assert "agreement is unknown" in str(apart)
    same = assessor_agreement(state_of(graded("a", 1), graded("a", 1, "bob")))
    assert (same.two[0].same, same.two[0].kappa, same.alpha["nominal"]) == (1.0, None, None)
    assert assessor_agreement(Judgements()).assessors == ()


def test_candidates_keep_a_place_that_says_nothing(tmp_path: Path) -> None:
    """The same order for everybody, another one for each query, and none of a pipeline's."""
    log = JudgementLog(tmp_path / "log.jsonl")
    judging = Judging({"q": "gold", "r": "river"}, log, ["bm25", "dense"], 5)
    documents = [f"d{number}" for number in range(30)]
    gone = {"d7"}

    def known(document: str) -> bool:
        return document not in gone

    def shown(query: str, assessor: str = "ann") -> list[str]:
        return [each.document for each in judging.candidates(query, assessor, known)]

    assert judging.next_query("ann", known) == "q"
    judging.pool("q", 1, documents)
    judging.pool("r", 1, reversed(documents))
    assert not judging.needs_pool("q", 1)
    assert judging.needs_pool("q", 2)
    assert set(shown("q")) == set(documents) - gone
    assert shown("q") == shown("q", "bob") != shown("r") != documents
    pooled = [line for line in log.path.read_text().splitlines() if '"pool"' in line]
    assert json.loads(pooled[1])["documents"] == sorted(documents)
    before = shown("q")
    judging.pool("q", 2, ["d3", "new"])
    assert [each for each in shown("q") if each != "new"] == before
    assert json.loads(log.path.read_text().splitlines()[-1])["documents"] == ["new"]
    size = log.path.stat().st_size
    judging.pool("q", 3, ["d3", "new"])
    assert log.path.stat().st_size == size
    for document in shown("r"):
        assert judging.say(graded(document, 0, query="r"), known).candidates == 29
    assert judging.next_query("ann", known) == "q"
    assert judging.next_query("ann", known, {"q"}) is None
    assert judging.next_query("bob", known, {"q"}) == "r"
    gone.add("d3")  # it was judged, and stays so
    assert judging.progress_of("r", "ann", known).is_done
    # Another depth: the query is pooled again before it counts as done.
    other = Judging(judging.queries, log, ["bm25"], 5)
    assert other.next_query("ann", known, {"q"}) == "r"
    assert (other.progress_of("r", "ann", known).candidates, len(shown("r"))) == (None, 28)
    assert other.progress_of("r", "ann", known).judged == 29
    # Two services with pipelines of their own keep one log: neither forgets what it pooled.
    other.pool("r", 1, ["d1"])
    assert other.progress_of("r", "ann", known).is_done
    assert judging.progress_of("r", "ann", known).is_done
    size = log.path.stat().st_size
    judging.pool("r", 2, ["d1"])
    assert log.path.stat().st_size == size
    # What was taken back and is gone cannot be judged: it is not waited for.
    judging.say(graded("d4", None, query="r"), known)
    assert not judging.progress_of("r", "ann", known).is_done
    gone.add("d4")
    assert judging.progress_of("r", "ann", known).is_done
    first = np.array([in_order(f"query {n}", documents).index("d0") for n in range(400)])
    assert abs(first.mean() - 14.5) < 3 * np.sqrt((30**2 - 1) / 12 / 400)


def test_a_log_of_other_queries_is_refused(tmp_path: Path) -> None:
    log = JudgementLog(tmp_path / "log.jsonl")
    Judging({"1": "gold"}, log, ["bm25"], 5).pool("1", 1, ["a"])
    Judging({"2": "river"}, log, ["bm25"], 5)  # more queries than before are no contradiction
    with pytest.raises(ConfigError, match="query '1' with the text 'gold', which is 'river' now"):
        Judging({"1": "river"}, log, ["bm25"], 5)
