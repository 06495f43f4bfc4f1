"""Relative paths of a YAML file: from the current folder, then beside it; outputs stay here."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.names import ROLES, Role, found_beside
from sluice.retrieval.config.reading import load_values
from sluice.retrieval.config.sections import TuneConfig

READ_KEYS = [key for key, role in ROLES.items() if role not in (Role.WRITTEN, Role.DATABASE)]


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder ``conf`` of files, and a current folder elsewhere."""
    (tmp_path / "conf" / "deep").mkdir(parents=True)
    for name in ("a.json", "b.json", "gold.txt", "gpt", "position", "dense", "deep/c.json", "o"):
        (tmp_path / "conf" / name).write_text("x")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "conf"


def _values(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    return found_beside(values, folder / "x.yaml")


@pytest.mark.parametrize("key", sorted(READ_KEYS))
def test_each_key_is_found_beside_the_file(away: Path, key: str) -> None:
    section = {"tower": {"type": "dense", "query": {key: "a.json"}}, key: ["deep/c.json", "no"]}
    for values in ({"train": {"t": section}}, section):
        found = _values(away, values).get("train", {"t": _values(away, values)})["t"]
        assert found["tower"]["query"] == {key: str(away / "a.json")}
        assert found[key] == [str(away / "deep/c.json"), "no"]


def test_the_current_folder_comes_first(away: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {
        "retrievers": {"d": {"prune": {"scores": "a.json"}}},
        "pipelines": {"p": "d >> c(exit='a.json')"},
    }
    Path("a.json").write_text("x")
    assert _values(away, values) == values
    Path("a.json").unlink()
    with caplog.at_level(logging.INFO, "sluice"):
        assert _values(away, values)["retrievers"]["d"]["prune"]["scores"] == str(away / "a.json")
    place = f"{away / 'x.yaml'}: retrievers.d.prune.scores"
    assert f"{place}: a.json is not in the current folder; using {away / 'a.json'}" in caplog.text


def test_places_that_links_may_lead_to(away: Path) -> None:
    dataset = {"corpus": "gold.txt", "allow": ["deep", "none", "/"]}
    found = _values(away, {"dataset": dataset})["dataset"]
    assert found == {"corpus": str(away / "gold.txt"), "allow": [str(away / "deep"), "none", "/"]}


def test_names_stay_names(away: Path) -> None:
    values = {
        "output": "o",
        "retrievers": {
            "dense": {"encoder": {"type": "dense", "model": "t"}, "encoding": {"cache": "deep"}},
            "file": "bm25",  # a retriever's own name is no key
        },
        "rerankers": {
            "gold.txt": {"type": "max_sim", "retriever": "dense"},
            "asked": {"type": "http", "model": "gpt"},
        },
        "train": {"t": {"examples": {"type": "clicks", "model": "position", "file": "none"}}},
        "ranker": {"model": "gpt", "output": "o"},
    }
    (away / "t").mkdir()
    assert _values(away, values) == values


def test_variables_in_paths(away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWAY", str(away))
    monkeypatch.delenv("UNSET", raising=False)
    (away / "conf").mkdir(exist_ok=True)
    file = away / "conf" / "x.yaml"
    file.write_text(
        "dataset: {corpus: $AWAY/c.csv}\noutput: ${AWAY}/o\n"
        "retrievers: {d: $AWAY/t, e: {encoder: {type: dense, model: $AWAY/t, prefix: $AWAY}}}\n"
        "pipelines: {p: \"synonyms(d, file='$AWAY/s.txt')\"}\n"
    )
    values = load_values(file)
    assert values["dataset"]["corpus"] == f"{away}/c.csv"
    assert values["output"] == f"{away}/o"
    assert values["retrievers"]["d"] == f"{away}/t"
    encoder = values["retrievers"]["e"]["encoder"]
    assert (encoder["model"], encoder["prefix"]) == (f"{away}/t", "$AWAY")  # which is no path
    assert f"'{away}/s.txt'" in values["pipelines"]["p"]
    assert load_values(file, variables=False)["output"] == "${AWAY}/o"  # somebody's saved config
    file.write_text("output: ~/o\n")
    assert load_values(file) == {"output": str(Path.home() / "o")}
    file.write_text("output: a\nexamples: ${UNSET}/pairs.csv\n")
    with pytest.raises(ConfigError, match=r"x\.yaml: examples: \$UNSET is not set; export it"):
        load_values(file)
    (away / "a$UNSET").write_text("x")  # a name with a dollar sign is itself
    monkeypatch.chdir(away)
    file.write_text("examples: a$UNSET\n")
    assert load_values(file) == {"examples": "a$UNSET"}


def test_files_of_expressions(away: Path) -> None:
    (away / "grün.txt").write_text("x")
    text = """(synonyms(a.b, file='grün.txt') | fused(a, b, fitted="a.json")
      % 100 >> x-y(exit='b.json', depth=5, cut_off=0.5) >> evidence(c, overrides='a.json',
      required=['b.json']) >> x-y(fitted='no.json'))"""
    a, b, c = (repr(str(away / name)) for name in ("a.json", "b.json", "grün.txt"))
    expected = text.replace("'grün.txt'", c).replace('fitted="a.json"', f"fitted={a}")
    expected = expected.replace("'a.json'", a).replace("exit='b.json'", f"exit={b}")
    found = _values(away, {"pipelines": {"p": f" {text}\n", "q": "no (", "r": 7}})
    assert found["pipelines"] == {"p": expected, "q": "no (", "r": 7}


def test_what_a_stage_writes_is_in_the_current_folder(away: Path) -> None:
    kept = "normalised(d, bank='scifact', fitted='deep')"
    read = "normalised(d, fitted='deep')"
    found = _values(away, {"pipelines": {"kept": kept, "read": read}})["pipelines"]
    assert found["kept"] == kept
    assert found["read"] == f"normalised(d, fitted={str(away / 'deep')!r})"


def test_templates_of_a_tuning(away: Path) -> None:
    tune = {"pipelines": ["d >> c(exit='{e}.json', depth={k})"], "choices": {"e": ["a", "b"]}}
    tune["choices"]["k"] = [5]
    found = _values(away, {"tune": tune})["tune"]
    assert found["pipelines"] == [f"d >> c(exit={str(away / '{e}.json')!r}, depth={{k}})"]
    tune["choices"]["e"] = ["a", "none"]
    assert _values(away, {"tune": tune})["tune"] == tune


def test_a_config_runs_from_any_folder(away: Path, sluice: Call) -> None:
    write_beir(away / "world")
    (away / "same.txt").write_text("gold => word3\n")
    config = {
        "dataset": "world",
        "output": "out",
        "retrievers": {"bm25": "bm25"},
        "pipelines": {"wider": "synonyms(bm25, file='same.txt')"},
    }
    (away / "x.yaml").write_text(json.dumps(config))
    code, _, err = sluice("index", away / "x.yaml")
    assert (code, Path("out/retrievers/bm25").is_dir()) == (0, True), err
    assert not (away / "out").exists()
    code, out, err = sluice("search", "out", "gold", "--pipeline", "wider", "-k", "40")
    assert (code, "d03" in out) == (0, True), err
    (away / "same.txt").unlink()
    code, _, err = sluice("config", "check", away / "x.yaml")
    assert (code, "same.txt" in err) == (2, True)


def test_a_tuning_reads_its_paths_too(away: Path) -> None:
    write_beir(away / "world")
    values = {
        "dataset": "world",
        "output": "o",
        "retrievers": {"d": "bm25"},
        "tune": {"budget": {"p50_ms": 9}, "pipelines": ["synonyms(d, file='gold.txt')"]},
    }
    (away / "x.yaml").write_text(json.dumps(values))
    found = TuneConfig.model_validate(load_values(away / "x.yaml"))
    assert found.tune.pipelines == [f"synonyms(d, file={str(away / 'gold.txt')!r})"]
