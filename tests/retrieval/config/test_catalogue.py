"""Lists of what a config may name: every name of every table, each with one line."""

from pathlib import Path

import pytest
from command_line import Call

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS
from sluice.indexing.table import INDEXES
from sluice.retrieval.config.schema.catalogue import core, entries, entry, kinds
from sluice.retrieval.config.yaml_file import configs, recipe_or_file, shown
from sluice.retrieval.evaluation.measure_table import MEASURES
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.pipelines.table import SCORERS, STAGES
from sluice.training.losses import LOSSES


def test_every_name_has_a_line() -> None:
    tables = {"losses": LOSSES, "encoders": ENCODERS, "rerankers": SCORERS, "indexes": INDEXES}
    for kind in kinds():
        lines = entries(kind)
        assert lines
        for line in lines.values():
            assert line
            assert "\n" not in line
        if kind in tables:
            assert list(lines) == sorted(tables[kind])
    assert set(STAGES) <= set(entries("stages"))
    assert len(entries("measures")) == len(MEASURES)
    for name in entries("measures"):
        parse_measure(name)
    assert entries("recipes").keys() == {file.stem for file in configs().glob("*.yaml")}


@pytest.mark.parametrize("kind", ["losses", "encoders", "indexes", "stages"])
def test_every_argument_is_described(kind: str) -> None:
    tables = {"losses": LOSSES, "encoders": ENCODERS, "indexes": INDEXES, "stages": STAGES}
    for name in tables[kind]:
        each = entry(kind, name)
        assert all(place["description"] for place in each.arguments.values())
        assert set(each.required) <= set(each.arguments)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("list losses ", set(core("losses"))),
        ("list losses ado", {"adore"}),  # others where none of the usual begins so
        ("list lo", {"losses"}),
        ("init tr", {"train", "train-cross-encoder", "train-dense", "train-splade"}),
    ],
)
def test_a_shell_completes_the_usual_names(
    words: str, offered: set[str], sluice: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_, **__: ("bash", "/bin/bash"))
    monkeypatch.setenv("COMP_WORDS", f"sluice config {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) + 1))
    monkeypatch.setenv("_SLUICE_COMPLETE", "complete_bash")
    assert {line.split(" ")[0] for line in sluice()[1].splitlines()} == offered


def test_on_the_command_line(sluice: Call) -> None:
    code, out, _ = sluice("config", "list", "losses")
    assert code == 0
    assert "\ninfo_nce           Softmax of the positive" in out
    assert "adore" not in out
    assert out.endswith(f"\nand {len(LOSSES) - 8} more: sluice config list losses --all\n")
    out = sluice("config", "list", "losses", "--all")[1]
    assert [line.split(" ")[0] for line in out.splitlines()][:2] == ["bce", "info_nce"]
    assert {line.split(" ")[0] for line in out.splitlines()} == set(LOSSES)
    assert "encoders   bm25, dense, splade, tokens and" in sluice("config", "list")[1]
    assert ", towers, vocabulary\n" in sluice("config", "list", "--all")[1]
    assert {"losses", "stages", "recipes"} < set(sluice("config", "list")[1].split())
    out = sluice("config", "list", "losses", "info_nce")[1]
    assert "  learning_rate          number | null, default 0.001\n" in out
    assert sluice("config", "list", "indexes", "faiss")[1].count(", required") == 1
    assert sluice("config", "list", "stages", "cached")[1].startswith("cached(scorer, ...): ")
    own = sluice("config", "list", "encoders", "sluice.encoders.lexical.bm25:BM25Encoder")[1]
    assert "number, default 0.9" in own
    code, _, err = sluice("config", "list", "indxes")
    assert (code, "did you mean 'indexes'?" in err) == (2, True)
    code, _, err = sluice("config", "list", "losses", "infonce")
    assert (code, "did you mean 'info_nce'?" in err) == (2, True)
    assert sluice("config", "schema")[1].startswith('{\n "$schema"')


def test_what_cannot_be_described() -> None:
    with pytest.raises(ConfigError, match="cannot be imported"):
        entry("losses", "no.such:Loss")
    assert entry("measures", "AP").arguments == {}


def test_the_name_of_a_recipe_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipe_or_file("quickstart") == configs() / "quickstart.yaml"
    assert recipe_or_file("quickstart.yaml") == Path("quickstart.yaml")
    assert shown(recipe_or_file("quickstart")) == "quickstart"
    assert shown("configs/x.yaml") == "configs/x.yaml"
    assert recipe_or_file("nothing") == Path("nothing")
    (tmp_path / "quickstart").write_text("dataset: pydocs\n")  # one's own file goes first
    assert recipe_or_file("quickstart") == Path("quickstart")
