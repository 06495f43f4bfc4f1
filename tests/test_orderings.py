"""``scripts/orderings.py`` on a toy set: results, tables, and verdicts on planted differences."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from places import ROOT
from scipy.stats import ttest_1samp
from tiny_models import WORDS

Main = Callable[..., str]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import orderings
    import orderings_bench

    return orderings, orderings_bench


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Thirty documents of one word each, so that a false negative stands at the top of a list."""
    folder = tmp_path / "toy"
    (folder / "qrels").mkdir(parents=True)
    words = list(dict.fromkeys(WORDS.split()))[:30]
    corpus = [{"_id": f"d{n}", "title": "", "text": f"{w} " * 8} for n, w in enumerate(words)]
    queries = []
    for split, places in (("train", range(20)), ("dev", range(20, 26))):
        lines = ["query-id\tcorpus-id\tscore"]
        for n in places:
            queries.append({"_id": f"q{n}", "text": f"{words[n]} " * 5})
            lines.append(f"q{n}\td{n}\t1")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def run(
    scripts: tuple[ModuleType, ModuleType], toy: Path, bert: Path,
    capsys: pytest.CaptureFixture[str],
) -> Main:  # fmt: skip
    def main(*words: str, steps: int = 2) -> str:
        settings = f"--documents 30 --dev 6 --batch 4 --layers 1 --steps {steps}".split()
        given = ["--dataset", str(toy), "--model", str(bert), "--output", str(toy / "out")]
        scripts[0].main([*words, *settings, *given, "--seeds", "13"])
        return capsys.readouterr().out

    return main


def test_mining_lets_planted_false_negatives_through(run: Main, toy: Path) -> None:
    printed = run("mining", "--only", "naive", "shifted")
    lines = printed.splitlines()
    assert lines[0].startswith("## Thresholds of mining")
    assert lines[2] == "| system | nDCG@10 | false negatives a query | seeds | seconds |"
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in lines[4:6]}
    assert set(rows) == {"naive", "shifted"}
    assert float(rows["naive"][2]) > 0.3 > float(rows["shifted"][2])
    says = [line for line in lines if line.startswith("- naive lets more through than shifted")]
    assert says[0].endswith("open: 1 of 3 seeds")
    assert "percentage over margin (nDCG@10): not measured" in printed

    result = json.loads((toy / "out" / "mining" / "naive.13.json").read_text())
    assert sorted(result["nDCG@10"]) == [f"q{n}" for n in range(20, 26)]


def test_a_result_that_is_there_is_not_made_again(
    run: Main, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run("bixse", "--only", "untrained")
    path = toy / "out" / "bixse" / "untrained.13.json"
    changed = {"nDCG@10": {"q20": 0.25, "q21": 0.5}, "seconds": 1}
    path.write_text(json.dumps(changed))
    assert "| untrained | 0.3750 | 1 | 1 |" in run("bixse", "--only", "untrained")
    assert "| untrained | 0.3750 | 1 | 1 |" not in first
    path.unlink()
    assert "not measured" in run("bixse", "--show")
    assert not path.exists()


def test_results_of_other_settings_do_not_mix(
    run: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    run("bixse", "--only", "untrained")
    with pytest.raises(SystemExit) as stopped:
        run("bixse", "--only", "untrained", steps=3)
    assert stopped.value.code == 2
    assert "name another --output" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("bixs")
    assert "'bixs': unknown; names are layers, bixse" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("clp", "--only", "info_nce", "clip")
    assert "--only 'clip': unknown; systems are untrained; info_nce; clp" in capsys.readouterr().err


def test_verdicts(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, bench = scripts
    claim = bench.over("a over b", "m", "a", "b")
    noise = np.random.default_rng(0).normal(size=(3, 40))

    def results(shift: float) -> dict[str, Any]:
        ours = {
            seed: {"m": {f"q{n}": x + shift for n, x in enumerate(noise[seed])}}
            for seed in range(3)
        }
        theirs = {seed: {"m": {f"q{n}": 0.1 for n in range(40)}} for seed in range(3)}
        return {"a": ours, "b": theirs}

    planted = bench.verdict(results(1.0), claim)
    assert planted.endswith("holds")
    mean_of_seeds = noise.mean(axis=0) + 0.9
    assert f"{mean_of_seeds.mean():+.4f}" in planted
    assert f"p {ttest_1samp(mean_of_seeds, 0).pvalue:.2g}" in planted
    assert bench.verdict(results(-1.0), claim).endswith(
        "does not hold here (every seed says the opposite)"
    )
    small = results(0.1 - noise.mean(axis=1).min() + 1e-3)  # every seed above 0, and by chance
    assert bench.verdict(small, claim).endswith("does not hold here")
    assert bench.verdict({"a": {}, "b": {}}, claim).endswith("not measured")

    numbers = {name: {seed: {"m": seed + shift} for seed in range(3)} for name, shift in
               (("a", 0.5), ("b", 0.0))}  # fmt: skip
    assert bench.verdict(numbers, claim).endswith("holds")
    numbers["a"][2]["m"] = 1.5
    assert bench.verdict(numbers, claim).endswith("does not hold here")


def test_labels_are_wrong_as_often_as_the_row_says(
    scripts: tuple[ModuleType, ModuleType], toy: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import orderings_losses

    _, bench = scripts
    cut = bench.Bench(str(toy), model=str(bert), documents=30, dev=6, layers=1)
    assert (len(cut.texts), len(cut.queries), len(cut.qrels)) == (26, 20, 6)
    seen: list[Any] = []

    def fitted(self: object, encoder: object, examples: Iterable[Any], *_: object) -> object:
        seen[:] = examples
        return encoder

    monkeypatch.setattr(bench.Bench, "fitted", fitted)
    orderings_losses.wrong_positives({}, 0.3, 0.3)(cut, 13)
    own = {f"q{n}": f"d{n}" for n in range(20)}
    wrong = [e for e in seen if e.documents[0].id != own[e.query.id]]
    assert (len(seen), len(wrong)) == (20, 6)
    assert {e.labels for e in wrong} == {(0.3,)}
    assert {e.labels for e in seen if e not in wrong} == {(1.0,)}
    for example in wrong:
        ranks = [document for document, _ in cut.lists()[example.query.id]]
        assert ranks.index(example.documents[0].id) >= 20
        assert example.relevant == {example.documents[0].id}

    orderings_losses.hidden_positives({}, 0.2)(cut, 13)
    hidden = [e for e in seen if e.documents[-1].id == f"{own[e.query.id]} again"]
    assert (len(seen), len(hidden)) == (20, 4)
    for example in hidden:
        positive, twin = example.documents
        assert example.labels == (1.0, 0.0)
        assert set(twin.text.split()) == set(positive.text.split())
        assert twin.text != positive.text


def test_the_pieces(scripts: tuple[ModuleType, ModuleType]) -> None:
    from orderings_losses import drop_of, loses_less

    _, bench = scripts
    assert drop_of([0.2, 0.5, 0.4, 0.6, 0.35, 0.5]) == pytest.approx(0.25)
    assert drop_of([0.1, 0.2]) == 0
    for text in ("one two three four five six seven eight", "one two", "one two three"):
        again = bench.paraphrase(text, "d")
        assert 0 < len(again.split()) < len(text.split())
        assert again == bench.paraphrase(text, "d")
    weights = loses_less("says", "bixse 30 %, graded .3", "info_nce 30 %").weights
    assert weights == {
        "bixse 30 %, graded .3": 1, "bixse 0 %": -1, "info_nce 30 %": -1, "info_nce 0 %": 1
    }  # fmt: skip


def test_lists_are_by_brute_force(scripts: tuple[ModuleType, ModuleType]) -> None:
    class Numbers:
        def encode_queries(self, texts: list[str]) -> np.ndarray:
            return np.array([[float(text)] for text in texts])

        encode_documents = encode_queries

    texts = {"a": "1", "b": "3", "c": "3", "d": "2"}
    lists = scripts[1].ranked(Numbers(), {"q": "1", "r": "-1"}, texts, 3)
    assert lists["q"] == [("b", 3.0), ("c", 3.0), ("d", 2.0)]  # of a tie the first
    assert lists["r"] == [("a", -1.0), ("d", -2.0), ("b", -3.0)]
