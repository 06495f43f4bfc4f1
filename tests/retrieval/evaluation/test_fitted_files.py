"""Files of small fitted things: one format, and those that were written before still open."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, ModelError, SluiceError
from sluice.retrieval.evaluation.fitted_file import read_fitted, write_fitted
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit
from sluice.retrieval.pipelines.fusion.fusion import Fusion
from sluice.retrieval.stages.adaptive_depth import PredictedDepth
from sluice.retrieval.stages.confidence_exit import ConfidenceExit, exit_rule
from sluice.retrieval.stages.hub_normaliser import Normaliser
from sluice.retrieval.stages.ltr.ranker import LearnedRanker

# As each kind was first written, byte for byte.
CUT_OFF = """\
{
  "format": "sluice.cut_off",
  "version": 1,
  "weights": [
    0.5,
    -1.0
  ],
  "intercept": 2.5,
  "least": 1,
  "most": 50,
  "extra": 1,
  "normalise": "shift"
}
"""
EXIT = """\
{
  "format": "sluice.exit",
  "version": 1,
  "threshold": 0.4,
  "kind": "margin",
  "width": 25,
  "fitted": {
    "exited": 0.3,
    "loss": 0.001,
    "value": 0.5,
    "full": 0.501,
    "queries": 50,
    "measure": "nDCG@10",
    "epsilon": 0.005,
    "bound": "dev"
  }
}
"""
FUSION = """\
{
  "format": "sluice-fusion",
  "fusion": {
    "method": "weighted",
    "weights": [
      0.25,
      0.75
    ],
    "normalise": "min-max",
    "minimum": null,
    "rank_constant": 60,
    "phi": 0.8,
    "gamma": 0.5,
    "sigma": 0.01
  },
  "names": [
    "bm25",
    "dense"
  ],
  "measure": "nDCG@10",
  "value": 0.5,
  "held_out": 0.48,
  "equal": 0.45,
  "single": [
    0.4,
    0.42
  ],
  "queries": 8,
  "tried": 231
}
"""
NORMALISER = """\
{
  "format": 1,
  "betas": [
    20.0
  ],
  "facts": {
    "queries": 3,
    "documents": 0,
    "seed": 0,
    "hub_depth": 1,
    "corpus": "ab"
  }
}
"""
LINEAR = """\
{
  "weights": [
    1.0,
    -0.5
  ],
  "mean": [
    0.0,
    1.0
  ],
  "scale": [
    1.0,
    2.0
  ]
}
"""
RANKER = """\
{
  "format": "sluice.ranker",
  "version": 1,
  "type": "linear",
  "features": [
    "all.bm25",
    "dense.score"
  ],
  "parts": {
    "dense": "f00d"
  },
  "language": "en",
  "files": {
    "linear.json": "b079cf70e9395c0101d1d2e5112ceae2ca5541331ee0a7261d698985eb057b90"
  },
  "facts": {
    "queries": 4
  },
  "importances": [
    {
      "name": "all.bm25",
      "weight": 1.0,
      "share": 0.6666666666666666
    },
    {
      "name": "dense.score",
      "weight": 0.5,
      "share": 0.3333333333333333
    }
  ]
}
"""


def fitted_fusion() -> FusionFit:
    fusion = Fusion("weighted", [0.25, 0.75])
    names, alone = ("bm25", "dense"), (0.4, 0.42)
    return FusionFit(fusion, names, "nDCG@10", 0.5, 0.48, 0.45, alone, 8, 231)


def normaliser_folder(folder: Path) -> Path:
    (folder / "hubs").mkdir()
    (folder / "hubs" / "normaliser.json").write_text(NORMALISER)
    np.save(folder / "hubs" / "normalisers-0.npy", np.array([0.5, -0.5], np.float32))
    np.save(folder / "hubs" / "hubs-0.npy", np.array([True, False]))
    return folder / "hubs"


def ranker_folder(folder: Path) -> Path:
    (folder / "ltr").mkdir()
    (folder / "ltr" / "ranker.json").write_text(RANKER)
    (folder / "ltr" / "linear.json").write_text(LINEAR)
    return folder / "ltr"


def test_a_fusion_written_before_it_had_a_version_opens(tmp_path: Path) -> None:
    (tmp_path / "fusion.json").write_text(FUSION)
    assert FusionFit.load(tmp_path / "fusion.json") == fitted_fusion()
    fitted_fusion().save(tmp_path / "new.json")
    assert FusionFit.load(tmp_path / "new.json") == fitted_fusion()
    new = json.loads((tmp_path / "new.json").read_text())
    assert (new.pop("format"), new.pop("version")) == ("sluice.fusion", 1)
    old = json.loads(FUSION)
    assert old.pop("format") == "sluice-fusion"
    assert new.items() >= old.items()


def test_a_normaliser_written_before_it_had_a_name_opens(tmp_path: Path) -> None:
    opened = Normaliser.load(normaliser_folder(tmp_path))
    assert opened.facts == json.loads(NORMALISER)["facts"]
    assert [bank.beta for bank in opened.banks] == [20.0]
    assert opened.banks[0].log_normalisers.tolist() == [0.5, -0.5]
    assert opened.banks[0].hubs.tolist() == [True, False]
    opened.save(tmp_path / "new")
    new = json.loads((tmp_path / "new" / "normaliser.json").read_text())
    assert new == {**json.loads(NORMALISER), "format": "sluice.normaliser", "version": 1}
    assert Normaliser.load(tmp_path / "new").facts == opened.facts


def test_a_ranker_is_written_as_before(tmp_path: Path) -> None:
    opened = LearnedRanker.open(ranker_folder(tmp_path))
    assert opened.features == ("all.bm25", "dense.score")
    assert opened.model.score(np.array([[2.0, 3.0]], np.float32)).tolist() == [1.5]
    opened.save(tmp_path / "new")
    assert (tmp_path / "new" / "ranker.json").read_text() == RANKER


def test_a_cut_off_and_an_exit_are_written_as_before(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text(CUT_OFF)
    (tmp_path / "exit.json").write_text(EXIT)
    rule = PredictedDepth.load(tmp_path / "cut.json")
    assert rule == PredictedDepth((0.5, -1.0), 2.5, 1, 50)
    rule.save(tmp_path / "new.json")
    assert (tmp_path / "new.json").read_text() == CUT_OFF
    assert exit_rule(str(tmp_path / "exit.json")) == ConfidenceExit(0.4)


def opened_at(name: str) -> tuple[Callable[[Path], Any], type[SluiceError]]:
    """Return what opens a kind of file, and what it raises."""
    if name == "fusion":
        return FusionFit.load, ConfigError
    if name == "cut_off":
        return PredictedDepth.load, ConfigError
    if name == "exit":
        return lambda path: exit_rule(str(path)), ConfigError
    if name == "normaliser":
        return lambda path: Normaliser.load(path.parent), IndexFormatError
    return lambda path: LearnedRanker.open(path.parent), ModelError


@pytest.mark.parametrize("kind", ["fusion", "cut_off", "exit", "normaliser", "ranker"])
@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", r"not readable as JSON .* again with"),
        ("[1]", r"a JSON list, expected an object of format 'sluice\.KIND'; write it again with"),
        ('{"format": "sluice.soup", "version": 1}', r"holds 'sluice\.soup', .* 'sluice\.KIND'"),
        ('{"version": 1}', r"holds None, expected 'sluice\.KIND'; give a file that .* wrote"),
        ('{"format": "sluice.KIND"}', r"format version is None, expected 1"),
        (
            '{"format": "sluice.KIND", "version": 2}',
            r"newer version .* format 2 .*; upgrade sluice-ir",
        ),
        ('{"format": "sluice.KIND", "version": 1}', r"again"),
    ],
)
def test_every_kind_refuses_in_the_same_words(
    tmp_path: Path, kind: str, written: str, message: str
) -> None:
    file = tmp_path / f"{kind}.json"
    file.write_text(written.replace("KIND", kind))
    opens, error = opened_at(kind)
    with pytest.raises(error, match=message.replace("KIND", kind)) as caught:
        opens(file)
    assert str(file) in str(caught.value)


def test_only_the_earlier_format_of_a_kind_may_lack_a_version(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"format": 1, "value": 2}')
    assert read_fitted(file, "x", earlier=1) == {"value": 2}
    for earlier in (None, 2, "x-old"):
        with pytest.raises(ConfigError, match=r"holds 1, expected 'sluice\.x'"):
            read_fitted(file, "x", earlier=earlier)
    write_fitted(file, "x", {"value": 3})
    assert read_fitted(file, "x", earlier=1) == {"value": 3}
