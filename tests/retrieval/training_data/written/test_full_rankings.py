"""Whole lists put in order by repeated passes of windows, and what is learnt from them."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from loopback import Server
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.rerankers.language_model import Prompt
from sluice.retrieval import Run
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.stages.transforms.writer import Limits
from sluice.retrieval.training_data.example_sources import file_examples
from sluice.retrieval.training_data.written.full_rankings import (
    Windows,
    passes_needed,
    rank_dataset,
)


class Ordering:
    """Orders the documents of a window by the numbers they begin with; counts its prompts."""

    fingerprint = "ordering"

    def __init__(
        self, says: Callable[[Prompt], str] | None = None, stop: int | None = None
    ) -> None:
        self.says, self.stop, self.asked = says or oracle, stop, 0

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        self.asked += len(prompts)
        if self.stop is not None and self.asked > self.stop:
            raise KeyboardInterrupt
        return [self.says(prompt) for prompt in prompts]


def worth(text: str) -> int:
    return int(text.split()[0])


def oracle(prompt: Prompt) -> str:
    shown = [worth(text) for text in prompt.slots[1:-1]]
    places = sorted(range(len(shown)), key=lambda place: -shown[place])
    return " > ".join(f"[{place + 1}]" for place in places)


def world(folder: Path, orders: Sequence[Sequence[int]]) -> tuple[Dataset, str]:
    """Queries whose candidates have these worths, as a dataset and a run's file."""
    highest = max(max(own) for own in orders)
    corpus = [Document(f"d{n}", "", f"{n} of worth") for n in range(highest + 1)]
    queries = {f"q{n}": f"query {n}" for n in range(len(orders))}
    qrels = {query: {f"d{orders[n][0]}": 1} for n, query in enumerate(queries)}
    run = {
        query: {f"d{own}": float(-place) for place, own in enumerate(orders[n])}
        for n, query in enumerate(queries)
    }
    path = folder / "first.trec"
    Run(run).save(path)
    return Dataset.from_memory(corpus, queries, qrels, split="train"), str(path)


def rows_in(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def shuffled(count: int, seed: int) -> list[int]:
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    return numbers


def test_the_number_of_passes() -> None:
    """Those of systems.md 7.5: nine with a step of 10, seven with 5; one where all fit."""
    assert [passes_needed(100, 20, step) for step in (10, 5)] == [9, 7]
    assert [passes_needed(count, 20, 10) for count in (2, 20, 21, 30, 31)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(("width", "step"), [(20, 10), (20, 5), (2, 1)])
def test_repeated_passes_reach_the_whole_order(width: int, step: int, tmp_path: Path) -> None:
    """From any order within the passes computed; from the worst one not within fewer."""
    count = 100 if width == 20 else 17
    orders = [list(range(count)), shuffled(count, 0), shuffled(count, 1)]
    data, run = world(tmp_path, orders)
    over = Windows(width, step)
    right = [f"d{number}" for number in range(count - 1, -1, -1)]
    kept = Limits(cache=str(tmp_path / "answers.sqlite"))
    report = rank_dataset(Ordering(), data, run, tmp_path / "whole.jsonl", over=over, limits=kept)
    assert (report.queries, report.ranked) == (3, 3)
    assert all(row["doc_ids"] == right for row in rows_in(tmp_path / "whole.jsonl"))
    fewer = over._replace(passes=passes_needed(count, width, step) - 1)
    again = Ordering()
    rank_dataset(again, data, run, tmp_path / "fewer.jsonl", over=fewer, limits=kept)
    assert again.asked == 0  # all in the cache
    assert rows_in(tmp_path / "fewer.jsonl")[0]["doc_ids"] != right
    finished = (width - step) * fewer.passes if fewer.passes else 0
    assert rows_in(tmp_path / "fewer.jsonl")[0]["doc_ids"][:finished] == right[:finished]


def test_rows_are_graded_lists(tmp_path: Path) -> None:
    data, run = world(tmp_path, [[2, 5, 3], [1, 0, 4]])
    report = rank_dataset(Ordering(), data, run, tmp_path / "r.jsonl")
    assert report.windows == 2
    assert "2 lists in order; 2 windows" in str(report)
    first = rows_in(tmp_path / "r.jsonl")[0]
    assert first["doc_ids"] == ["d5", "d3", "d2"]
    assert first["grades"] == pytest.approx([1.0, 1 / math.log2(3), 0.5])
    one, two = file_examples({"file": str(tmp_path / "r.jsonl")}, data, 13)
    assert (one.query.id, [d.id for d in two.documents]) == ("q0", ["d4", "d1", "d0"])
    assert one.labels == pytest.approx((1.0, 1 / math.log2(3), 0.5))
    assert [d.text for d in one.documents] == ["5 of worth", "3 of worth", "2 of worth"]


def test_a_pass_that_changes_nothing_is_the_last(tmp_path: Path) -> None:
    data, run = world(tmp_path, [list(range(29, -1, -1)), shuffled(30, 1)])
    model = Ordering()
    rank_dataset(model, data, run, tmp_path / "r.jsonl", over=Windows(10, 5))
    whole = passes_needed(30, 10, 5)
    assert model.asked < 5 * whole + 5  # the list in order had one pass


def test_a_short_list_has_no_passes_after_its_own(tmp_path: Path) -> None:
    """Those of the long list end before, since it is in order."""
    data, run = world(tmp_path, [list(range(29, -1, -1)), [1, 2]])
    rank_dataset(Ordering(), data, run, tmp_path / "r.jsonl", over=Windows(10, 5))
    assert [row["doc_ids"][0] for row in rows_in(tmp_path / "r.jsonl")] == ["d29", "d2"]


def test_lists_without_an_answer_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, run = world(tmp_path, [shuffled(12, 0), [13, 14], [15], shuffled(12, 2)])

    def says(prompt: Prompt) -> str:
        return (
            "I cannot" if any(worth(text) == 13 for text in prompt.slots[1:-1]) else oracle(prompt)
        )

    report = rank_dataset(Ordering(says), data, run, tmp_path / "r.jsonl", over=Windows(6, 3))
    assert (report.queries, report.ranked) == (3, 2)  # one has a single candidate
    assert [row["query_id"] for row in rows_in(tmp_path / "r.jsonl")] == ["q0", "q3"]
    assert "left out 1 of 3 queries: a window of their lists had no usable answer" in caplog.text
    with pytest.raises(DataError, match="no answer about 3 queries names a document"):
        rank_dataset(Ordering(lambda prompt: "?"), data, run, tmp_path / "e.jsonl")
    with pytest.raises(DataError, match="no answer about 3 queries"):
        rank_dataset(Ordering(), data, run, tmp_path / "f.jsonl", limits=Limits(budget=0))
    assert not list(tmp_path.glob("[ef].jsonl"))


def test_answers_of_any_kind_leave_a_permutation(tmp_path: Path) -> None:
    data, run = world(tmp_path, [shuffled(25, seed) for seed in range(6)])
    random_words = random.Random(5)

    def says(prompt: Prompt) -> str:
        words = ["[1]", "[3]", ">", "[99]", "[0]", "[-2]", "x", "[2] > [2]", "7", "[", "[4]"]
        return " ".join([*random_words.choices(words, k=random_words.randrange(30)), "[2]"])

    rank_dataset(Ordering(says), data, run, tmp_path / "r.jsonl", over=Windows(6, 2))
    rows = rows_in(tmp_path / "r.jsonl")
    assert len(rows) == 6
    assert all(sorted(row["doc_ids"]) == sorted(f"d{n}" for n in range(25)) for row in rows)


def test_a_killed_call_pays_for_nothing_twice(tmp_path: Path) -> None:
    data, run = world(tmp_path, [shuffled(30, seed) for seed in range(2)])
    whole = Ordering()
    rank_dataset(whole, data, run, tmp_path / "whole.jsonl", over=Windows(10, 5))
    with pytest.raises(KeyboardInterrupt):
        rank_dataset(Ordering(stop=9), data, run, tmp_path / "r.jsonl", over=Windows(10, 5))
    assert not (tmp_path / "r.jsonl").exists()
    rest = Ordering()
    rank_dataset(rest, data, run, tmp_path / "r.jsonl", over=Windows(10, 5))
    assert rest.asked == whole.asked - 8
    assert rows_in(tmp_path / "r.jsonl") == rows_in(tmp_path / "whole.jsonl")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"over": Windows(5, 5)}, "step: 5; expected less than the window, 5"),
        ({"over": Windows(1, 1)}, "window is 1"),
        ({"over": Windows(5, 2, 0)}, "passes is 0"),
        ({"depth": 1}, "depth is 1"),
        ({"prompt": "{query}"}, r"prompt: has no \{documents\}"),
        ({"candidates": "nowhere.trec"}, "candidates: no file or folder nowhere.trec"),
        ({"output": "r.csv"}, "JSON lines are written"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], fault: str, tmp_path: Path) -> None:
    data, run = world(tmp_path, [[1, 0]])
    given: dict[str, Any] = {"candidates": run, "output": "r.jsonl", **changes}
    output = tmp_path / given.pop("output")
    with pytest.raises(ConfigError, match=fault):
        rank_dataset(Ordering(), data, given.pop("candidates"), output, **given)
    assert not output.exists()


def test_a_run_of_another_split(tmp_path: Path) -> None:
    data, _ = world(tmp_path, [[1, 0]])
    Run({"other": {"d0": 1.0, "d1": 0.5}}).save(tmp_path / "o.trec")
    with pytest.raises(DataError, match=r"for none of the 1 queries .* is it a run on another"):
        rank_dataset(Ordering(), data, str(tmp_path / "o.trec"), tmp_path / "r.jsonl")


def test_a_journey(
    sluice: Call, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint orders lists by the numbers in them; a YAML learns that order, and reranks."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def reply(body: dict[str, Any]) -> Any:
        shown = re.findall(r"\[(\d+)\] .*?word(\d+)", body["messages"][0]["content"])
        order = sorted(shown, key=lambda each: -int(each[1]))
        content = " > ".join(f"[{place}]" for place, _ in order)
        return {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": 5}}

    server = Server(reply)
    data = str(write_beir(tmp_path / "data"))
    facts: dict[str, Any] = {
        "dataset": data, "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "pipelines": {"bm25": "bm25"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip
    file, rows = tmp_path / "x.yaml", tmp_path / "ranked.jsonl"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    assert sluice("run", file)[0] == 0
    model = json.dumps({"type": "http", "url": server.url, "model": "m", "retries": 0})
    code, out, err = sluice(
        "teach", "rank", model, data, "--candidates", tmp_path / "out" / "retrievers" / "bm25",
        "--output", rows, "--depth", 8, "--window", 4, "--step", 2,
    )  # fmt: skip
    server.close()
    assert code == 0, err
    assert "12 lists in order" in out
    for row in rows_in(rows):
        numbers = [int(name.removeprefix("d")) for name in row["doc_ids"]]
        assert numbers == sorted(numbers, reverse=True)
    facts["train"] = {
        "cross": {
            "encoder": {"type": "cross_encoder", "model": str(bert)},
            "examples": str(rows), "loss": "list_mle",
            "trainer": {"max_steps": 1, "per_device_train_batch_size": 2},
        },
    }  # fmt: skip
    facts["rerankers"] = {"cross": {"type": "cross_encoder", "model": "cross"}}
    facts["pipelines"] = {"reranked": "bm25 >> cross(depth=3)"}
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, _, err = sluice("run", file)
    assert code == 0, err


def test_the_options_of_the_command(
    sluice: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split, depth, windows, passes, prompt and budget reach the work; a fault writes nothing."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    asked: list[str] = []

    def reply(body: dict[str, Any]) -> Any:
        asked.append(body["messages"][0]["content"])
        places = sorted(re.findall(r"\[(\d+)\] ", asked[-1]), key=int, reverse=True)
        content = " > ".join(f"[{place}]" for place in places)  # the last is the best
        return {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": 5}}

    server = Server(reply)
    data = write_beir(tmp_path / "data")
    run = {f"q{n}": {f"d{10 + d}": float(-d) for d in range(5)} for n in range(40)}
    Run(run).save(tmp_path / "r.trec")
    model = json.dumps({"type": "http", "url": server.url, "model": "m", "retries": 0})
    words = ["teach", "rank", model, data, "--candidates", tmp_path / "r.trec", "--output"]
    prompt = "Of {count}, for {query}:\n{documents}\nwrite them in order."
    code, out, err = sluice(
        *words, tmp_path / "test.jsonl", "--split", "test", "--depth", 4, "--window", 3,
        "--step", 2, "--passes", 1, "--prompt", prompt,
    )  # fmt: skip
    assert code == 0, err
    assert "8 lists in order; 16 windows, 80 tokens" in out
    rows = rows_in(tmp_path / "test.jsonl")
    assert [row["query_id"] for row in rows] == [f"q{n}" for n in range(20, 28)]
    # 0 1 [2 3] is a window of three: 0 [3 2 1], then [2 3 0] 1 from the first three places.
    assert all(row["doc_ids"] == ["d12", "d13", "d10", "d11"] for row in rows)
    assert len(asked) == 16
    assert all(text.startswith("Of 3, for ") for text in asked)
    code, _, err = sluice(*words, tmp_path / "none.jsonl", "--split", "test", "--budget", 0)
    assert code == 2
    assert "no answer about 8 queries" in err
    code, _, err = sluice(*words, tmp_path / "none.jsonl", "--window", 2, "--step", 2)
    assert code == 2
    assert "step: 2; expected less than the window, 2" in err
    server.close()
    assert not (tmp_path / "none.jsonl").exists()
