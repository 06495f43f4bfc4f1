"""``scripts/rerankers.py`` on a toy set: rows, what is kept, and the sums of its table."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from places import ROOT
from scipy.stats import norm, ttest_1samp
from tiny_models import WORDS

QUERIES = 16  # the last four are dev


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        import rerankers
        import rerankers_bench

        yield rerankers, rerankers_bench


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of two words each; a query has the first of its document's words."""
    folder = tmp_path_factory.mktemp("rerankers") / "toy"
    (folder / "qrels").mkdir(parents=True)
    words = list(dict.fromkeys(WORDS.split()))[:30]
    corpus = [
        {"_id": f"d{n}", "title": "", "text": f"{word} {words[n - 1]} " * 3}
        for n, word in enumerate(words)
    ]
    queries = [{"_id": f"q{n}", "text": f"{words[n]} " * 2} for n in range(QUERIES)]
    for split, places in (("train", range(QUERIES - 4)), ("dev", range(QUERIES - 4, QUERIES))):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in places)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.thorough
def test_rows_are_scored_once_and_put_into_a_table(
    scripts: tuple[ModuleType, ModuleType], toy: Path, bert: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for script in scripts:
        monkeypatch.setattr(script, "HALVINGS", 1)
    sizes = {"queries": 12, "dev": 4, "steps": 2, "pairs": 16, "depth": 12, "longest": 48}
    settings = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    given = [
        *("--datasets", str(toy), "--model", str(bert), "--output", str(toy / "out")),
        *("--seeds", "13", "14", *settings),
    ]
    rows = ["present", "residual", "listwise", "soup"]
    scripts[0].main([*given, "--only", *rows])
    printed = capsys.readouterr().out
    assert printed.startswith("## toy, base: present")
    for row in (*rows, "residual, and the scores", "present, mean of 2 seeds' scores"):
        assert f"\n| {row} | " in printed
    saved = sorted((toy / "out" / "toy" / "rows").iterdir())
    scores = {file.stem: json.loads(file.read_text())["scores"] for file in saved}
    assert set(scores["present.13"]) == {"q12", "q13", "q14", "q15"}
    assert {len(each) for each in scores["listwise.14"].values()} == {12}
    assert scores["present.13"] != scores["present.14"]
    assert scores["soup.13"] not in (scores["present.13"], scores["present.14"])

    times = [file.stat().st_mtime_ns for file in saved]
    scripts[0].main([*given, "--only", *rows])
    assert capsys.readouterr().out == printed
    assert [file.stat().st_mtime_ns for file in saved] == times
    with pytest.raises(SystemExit):
        scripts[0].main([*given, "--steps", "3"])
    assert "results of other settings" in capsys.readouterr().err


def test_weights_of_the_likeliest_positives(scripts: tuple[ModuleType, ModuleType]) -> None:
    chance = np.random.default_rng(1)
    groups = []
    for size in (3, 5, 4, 6):
        labels = np.arange(size) == 1
        labels[2] = size == 5
        groups.append((chance.normal(size=(size, 2)), labels))
    nothing = (np.ones((2, 2)), np.zeros(2, bool))

    def cost(weights: np.ndarray) -> float:
        total = 0.0
        for features, labels in groups:
            logits = features @ weights
            total += np.log(np.exp(logits).sum()) - logits[labels].mean()
        return total / len(groups) + 0.1 * float(weights @ weights)

    found = scripts[1].likeliest([*groups, nothing], penalty=0.1)
    for step in np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1]]) * 1e-3:
        assert cost(found) < cost(found + step)


def test_a_paired_test_over_one_collection_and_over_several(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    one = np.random.default_rng(2).normal(0.05, 0.2, 40)
    other = np.random.default_rng(3).normal(0.02, 0.3, 60)
    assert scripts[1].paired([one]) == (
        pytest.approx(one.mean()), pytest.approx(ttest_1samp(one, 0).pvalue)
    )  # fmt: skip
    error = np.sqrt(one.var(ddof=1) / 40 + other.var(ddof=1) / 60) / 2
    mean = (one.mean() + other.mean()) / 2
    assert scripts[1].paired([one, other]) == (
        pytest.approx(mean), pytest.approx(2 * norm.sf(mean / error))
    )  # fmt: skip
    assert scripts[1].paired([np.zeros(5)]) == (0, 1)


def test_what_reranks_is_chosen_on_the_other_half(scripts: tuple[ModuleType, ModuleType]) -> None:
    """One scorer is right everywhere, and all its order is taken; one is wrong, and is not used."""
    names = [f"d{n}" for n in range(6)]
    lists = {f"q{n}": {"documents": names, "first": [6, 5, 4, 3, 2, 1]} for n in range(8)}
    qrels = {query: {names[2 + number % 3]: 1} for number, query in enumerate(lists)}
    right = {q: [float(name in qrels[q]) for name in names] for q in lists}
    wrong = {q: [-score for score in scores] for q, scores in right.items()}
    first = np.array([1 / np.log2(4 + number % 3) for number in range(8)])

    good = scripts[1].measured(lists, qrels, right)
    np.testing.assert_allclose(good.first, first)
    np.testing.assert_allclose(good.alone, 1)
    np.testing.assert_allclose(good.fitted, 1)
    bad = scripts[1].measured(lists, qrels, wrong)
    np.testing.assert_allclose(bad.alone, 1 / np.log2(7))
    np.testing.assert_allclose(bad.fitted, first)
