"""A user's own measure, ``my_package.module:name@10``, wherever a measure is named."""

import re
from pathlib import Path

import pytest
from command_line import Call

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, load_config
from sluice.retrieval.evaluation.measures import at_level, parse_measure
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.run import Run

RUN = Run({"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"x": 2.0, "a": 1.0}})
QRELS = {"q1": {"a": 1, "c": 2}, "q2": {"a": 1}, "q3": {"b": 1}}
PAGE = Path(__file__).parents[3] / "docs" / "measures.md"
MORE = """

class Share:
    def __call__(self, judgements, cutoff, level):
        hits = np.bincount(
            judgements.hit_query[judgements.hit_grade >= level], minlength=len(judgements.retrieved)
        )
        return hits / (cutoff or 1)

share = Share()
number = 3

def two(judgements, cutoff):
    return judgements.retrieved

def short(judgements, cutoff, level):
    return [1.0]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with the page's measure and some more."""
    source = re.search(r"## A measure of your own.*?```python\n(.*?)```", PAGE.read_text(), re.S)
    assert source is not None
    name = f"own_measures_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(source[1] + MORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_the_measure_of_the_page(module: str) -> None:
    scores = evaluate(RUN, QRELS, [f"{module}:bonus@10", f"{module}:bonus@1", f"{module}:bonus"])
    assert scores.per_query[f"{module}:bonus@10"] == {"q1": 1.5, "q2": 1.0, "q3": 0.0}
    assert scores.per_query[f"{module}:bonus@1"] == {"q1": 1.5, "q2": 0.0, "q3": 0.0}
    assert scores.mean[f"{module}:bonus"] == pytest.approx(2.5 / 3)


def test_an_object_is_a_precision_as_the_built_in_one(module: str) -> None:
    own, built_in = f"{module}:share(rel=2)@2", "P(rel=2)@2"
    for depth in (2, 3):
        own, built_in = own[:-1] + str(depth), built_in[:-1] + str(depth)
        scores = evaluate(RUN, QRELS, [own, built_in])
        assert scores.per_query[own] == scores.per_query[built_in]
    assert scores.mean[own] > 0


def test_its_name_and_its_level(module: str) -> None:
    measure = parse_measure(f" {module}:share@10(rel=2) ")
    assert str(measure) == f"{module}:share(rel=2)@10"
    assert parse_measure(str(measure)) == measure
    assert [str(m) for m in at_level([parse_measure(f"{module}:share@5")], 3)] == [
        f"{module}:share(rel=3)@5"
    ]


def test_yaml_and_the_command_line(module: str, tmp_path: Path, sluice: Call) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(
        "dataset: pydocs\noutput: out\nretrievers: {bm25: {encoder: {type: bm25}}}\n"
        f"evaluate: {{measures: ['{module}:bonus@10', nDCG@10]}}\n"
    )
    assert load_config(config, ExperimentConfig).evaluate.measures == [
        f"{module}:bonus@10",
        "nDCG@10",
    ]
    RUN.save(tmp_path / "run.trec")
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("".join(f"{q} 0 {d} {g}\n" for q, ds in QRELS.items() for d, g in ds.items()))
    code, out, _ = sluice("score", tmp_path / "run.trec", qrels, "-m", f"{module}:bonus@10,RR")
    assert (code, out.splitlines()[0]) == (0, f"{module}:bonus@10\tall\t0.8333")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module_anywhere:bonus@10", "cannot be imported.*no_such_module_anywhere"),
        ("{module}:missing@10", "cannot be imported.*missing"),
        ("{module}:number@10", "expected a function"),
        ("{module}:two@10", r"expected a function \(judgements, cutoff, level\)"),
        ("{module}:bonus(p=0.5)@10", "has no 'p'; it takes rel"),
        ("{module}:bonus@0", "needs a cut-off of 1 or more"),
    ],
)
def test_what_cannot_be_used(module: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_measure(text.format(module=module))


def test_values_that_are_not_one_for_each_query(module: str) -> None:
    with pytest.raises(ConfigError, match="a finite number for each of the 3 queries"):
        evaluate(RUN, QRELS, [f"{module}:short@10"])
