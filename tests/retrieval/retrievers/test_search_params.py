"""Search parameters of an index, by retriever, by call, in YAML and on the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from small_world import WordEncoder, documents, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FaissIndex, InvertedIndex
from sluice.retrieval import Retriever, load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.pipelines.operators import Cut
from sluice.retrieval.stages.feedback.dense import prf

QUERY = "gold river number"
WORDS = "small_world:WordEncoder"


def cells(**options: Any) -> Retriever:
    """A retriever over 8 cells, of which a search visits one unless told otherwise."""
    index = FaissIndex("IVF8,Flat", metric="ip", params={"nprobe": 1})
    return Retriever.build(WordEncoder(), documents(400), index=index, **options)


def found(retriever: Retriever, **options: Any) -> int:
    return len(retriever.run({"q": QUERY}, k=400, **options)["q"])


def test_a_call_may_give_parameters_of_its_own() -> None:
    retriever = cells()
    narrow = found(retriever)
    assert narrow < found(retriever, params={"nprobe": 8}) == 400
    assert found(retriever) == narrow
    assert len(retriever.search(QUERY, 400, params={"nprobe": 8})) == 400


def test_parameters_of_a_retriever_hold_for_every_search(tmp_path: Path) -> None:
    retriever = cells(path=tmp_path / "r")
    narrow = found(retriever)
    retriever.params = {"nprobe": 8}
    assert retriever.params == {"nprobe": 8}
    assert found(retriever) == 400
    assert found(retriever, params={"nprobe": 1}) == narrow  # a call's own come first
    assert len(prf(retriever, k=1).run({"q": QUERY}, k=400)["q"]) == 400
    assert found(Retriever.open(tmp_path / "r", allow=[WORDS])) == narrow  # not in the folder
    opened = Retriever.open(tmp_path / "r", allow=[WORDS], params={"nprobe": 8})
    assert found(opened) == 400
    retriever.delete(["d01"])
    assert retriever.params == {"nprobe": 8}  # they stay when the documents change


def test_unknown_parameters_are_refused_with_the_nearest_name() -> None:
    retriever = Retriever.build(BM25Encoder(), documents())
    with pytest.raises(ConfigError, match=r"unknown search parameter 'alpa'.*did you mean 'alpha'"):
        retriever.params = {"alpa": 0.9}
    with pytest.raises(ConfigError, match=r"params\.alpha: 2, expected a number above 0"):
        retriever.params = {"alpha": 2}
    assert retriever.params == {}
    with pytest.raises(ConfigError, match="unknown search parameter 'nprobe'"):
        retriever.search("gold", params={"nprobe": 3})


def test_engines_of_an_inverted_index_can_be_chosen() -> None:
    retriever = Retriever.build(BM25Encoder(), documents(), index=InvertedIndex())
    exact = retriever.run({"q": QUERY})
    for engine in ("auto", "terms", "blocks"):
        run = retriever.run({"q": QUERY}, params={"engine": engine})
        assert list(run["q"].doc_ids) == list(exact["q"].doc_ids)
        np.testing.assert_allclose(run["q"].scores, exact["q"].scores, rtol=1e-6)
    retriever.params = {"engine": "terms"}
    plan = retriever.explain("gold", "d00").plan
    assert plan is not None
    assert plan.engine == "terms"


def config(tmp_path: Path, **search: Any) -> dict[str, Any]:
    data = tmp_path / "data"
    return {
        "dataset": str(data if data.exists() else write_beir(data)),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}, "search": search}},
    }


def test_yaml_sets_the_parameters_without_a_rebuild(tmp_path: Path) -> None:
    plain = Experiment(checked(config(tmp_path), ExperimentConfig))
    key = plain.needs.keys("retrievers.bm25").key
    assert plain.retriever("bm25").params == {}
    head = (tmp_path / "out/retrievers/bm25/retriever.json").read_text()
    searched = Experiment(checked(config(tmp_path, alpha=0.9), ExperimentConfig))
    assert searched.is_built("bm25")
    assert searched.retriever("bm25").params == {"alpha": 0.9}
    assert (tmp_path / "out/retrievers/bm25/retriever.json").read_text() == head
    assert searched.needs.keys("retrievers.bm25").key != key  # what is made of its hits changes
    saved = yaml.safe_dump(config(tmp_path, alpha=0.9))
    (tmp_path / "out/experiment.yaml").write_text(saved, encoding="utf-8")
    stage = load_pipeline(tmp_path / "out", "bm25")
    assert isinstance(stage, Retriever)
    assert stage.params == {"alpha": 0.9}


def test_the_command_line_gives_parameters(tmp_path: Path, sluice: Call) -> None:
    folder = tmp_path / "r"
    Retriever.build(BM25Encoder(), documents(), path=folder)
    plain = sluice("search", folder, "gold")
    assert plain[0] == 0
    assert sluice("search", folder, "gold", "--param", "engine=terms") == plain
    code, _, err = sluice("search", folder, "gold", "--param", "alpa=0.9")
    assert code != 0
    assert "unknown search parameter 'alpa'" in err
    code, _, err = sluice("search", folder, "gold", "--param", "alpha")
    assert code != 0
    assert "expected NAME=VALUE" in err
    code, _, err = sluice("search", folder, "gold", "--param", "alpha=1", "--param", "alpha=0.5")
    assert code != 0
    assert "given twice" in err


def test_a_pipeline_takes_its_parameters_from_yaml(tmp_path: Path, sluice: Call) -> None:
    settings = {**config(tmp_path, engine="terms"), "pipelines": {"short": "bm25 % 5"}}
    Experiment(checked(settings, ExperimentConfig)).retriever("bm25")
    (tmp_path / "out/experiment.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    stage = load_pipeline(tmp_path / "out", "short")
    assert isinstance(stage, Cut)
    assert isinstance(stage.stage, Retriever)
    assert stage.stage.params == {"engine": "terms"}
    code, _, err = sluice("search", tmp_path / "out", "gold", "--param", "alpha=0.9")
    assert code != 0
    assert "'short' is a pipeline" in err
    assert "retrievers.NAME.search" in err
