"""Shards by YAML and on the command line: index, search, change, verify, reshard."""

import shutil
from pathlib import Path

import pytest
from command_line import Call
from small_world import write_beir

YAML = """
dataset: {data}
output: {output}
retrievers:
  whole: {{encoder: {{type: bm25}}}}
  parts: {{encoder: {{type: bm25}}, {more}}}
evaluate: {{latency_queries: 0, report: false}}
"""


@pytest.fixture(name="config")
def written(tmp_path: Path) -> Path:
    text = YAML.format(
        data=write_beir(tmp_path / "data"), output=tmp_path / "out", more="shards: 3"
    )
    (tmp_path / "x.yaml").write_text(text)
    return tmp_path / "x.yaml"


@pytest.mark.thorough
def test_the_journey_of_shards(sluice: Call, config: Path, tmp_path: Path) -> None:
    code, _, err = sluice("index", config)
    assert code == 0, err
    parts, whole = (tmp_path / f"out/retrievers/{name}" for name in ("parts", "whole"))

    def same() -> None:
        found = [sluice("search", folder, "gold river", "-k", 5) for folder in (parts, whole)]
        assert found[0] == found[1]
        assert found[0][0] == 0
        assert found[0][1].count("gold") > 2

    same()
    new = tmp_path / "new.jsonl"
    new.write_text('{"_id": "n1", "text": "gold gold river"}\n{"_id": "n2", "text": "a river"}\n')
    assert sluice("add", tmp_path / "out", new)[1] == f"{tmp_path}/out: 2 added, 42 documents\n"
    same()
    assert sluice("delete", tmp_path / "out", "n2", "d10")[0] == 0
    code, out, _ = sluice("reshard", parts, 2)
    assert (code, out) == (0, f"{parts}: 40 documents, from 3 shards to 2\n")
    sluice("delete", whole, "--compact")
    same()
    code, out, _ = sluice("evaluate", config)  # with what was changed since, and resharded
    figures = [
        line.split()[1:3] for line in out.splitlines() if line.startswith(("whole", "parts"))
    ]
    assert code == 0
    assert len(figures) == 2
    assert figures[0] == figures[1]
    assert len(list(parts.glob("shards/*/shard-*"))) == 2
    assert sluice("verify", parts)[0] == 0
    assert "terms" in sluice("explain", parts, "gold river")[1]

    shutil.rmtree(next(parts.glob("shards/*/shard-1")))
    code, out, err = sluice("search", parts, "gold river")
    assert (code, out) == (2, "")
    assert "shard-1" in err
    assert "partial: allow" in err
    code, out, err = sluice("search", parts, "gold river", "--param", "partial=allow")
    assert code == 0
    assert out
    assert "partial: [shard-1]" in err
    assert sluice("verify", parts)[0] == 2
    changed = config.read_text().replace("shards: 3", "shards: 3, search: {partial: allow}")
    config.write_text(changed)
    code, _, err = sluice("evaluate", config)
    assert code == 2
    assert "shard-1" in err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("shards: 0", "shards: 0; expected 1 or more"),
        ("shards: 99", "99, for 40 documents"),
        ("shards: 2, shard_size: 9", "either shards, their number, or shard_size"),
        ("shards: 2, index: {type: auto}", "index of type auto"),
        ("shards: 2, search: {deadline_ms: -1}", "a number above 0"),
        ("search: {partial: allow}", "partial"),
        ("shard: 2", "did you mean 'shards'"),
    ],
)
def test_wrong_shards_end_in_one_line(
    sluice: Call, tmp_path: Path, more: str, message: str
) -> None:
    data = write_beir(tmp_path / "data")
    text = YAML.format(data=data, output=tmp_path / "out", more=more)
    if "auto" in more:
        text = text.replace(
            "parts: {encoder: {type: bm25}", "parts: {encoder: {type: dense, model: x}"
        )
    (tmp_path / "x.yaml").write_text(text)
    code, _, err = sluice("index", tmp_path / "x.yaml", "--only", "parts")
    assert code == 2
    assert message in err


def test_a_wrong_number_for_reshard(sluice: Call, config: Path, tmp_path: Path) -> None:
    assert sluice("index", config, "--only", "parts")[0] == 0
    parts = tmp_path / "out/retrievers/parts"
    before = sluice("search", parts, "gold river")
    for number in ("0", "41", "-1", "some"):
        assert sluice("reshard", parts, number)[0] == 2
    assert sluice("reshard", tmp_path / "out", 2)[0] == 2
    assert sluice("search", parts, "gold river") == before
    assert sluice("verify", parts)[0] == 0
