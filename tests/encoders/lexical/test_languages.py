"""The table of languages: real sentences, found by other forms of a word; five scripts at once."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import Stemmer
import yaml
from command_line import Call
from places import ROOT
from sentences import SENTENCES

from sluice.encoders.lexical.analyzer import analyzer, words
from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.encoders.lexical.languages import BY_NAME, GRAMS, LANGUAGES

PAGE = (ROOT / "docs" / "how-to" / "languages.md").read_text(encoding="utf-8")
# Different words, of a script that the sentence of the code is not in; none is found by another.
FIVE = {"de": "Würde", "ru": "достоинстве", "el": "αξιοπρέπεια", "ar": "الكرامة", "zh": "尊严"}


def test_the_page_is_made_from_the_table() -> None:
    path = ROOT / "scripts" / "make_languages_docs.py"
    spec = importlib.util.spec_from_file_location("make_languages_docs", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page(PAGE) == PAGE, "run scripts/make_languages_docs.py"


def test_the_table_is_whole() -> None:
    stemmers = {each.algorithm for each in LANGUAGES if each.snowball}
    # Of Dutch and English Snowball has another, older one; English is Porter's own revision.
    assert stemmers | {"english", "porter", "dutch_porter"} == set(Stemmer.algorithms())
    assert len(BY_NAME) == sum(len(each.names) for each in LANGUAGES)
    codes = {code for each in LANGUAGES for code in each.codes if len(code) == 2}
    assert codes - set(SENTENCES) == {"nn", "no"}  # as nb
    for name, each in BY_NAME.items():
        assert analyzer(name) is analyzer(each.names[-1])


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_is_found_by_another_form_of_its_word(code: str) -> None:
    text, word, asked = SENTENCES[code]
    assert word in text
    analyse = analyzer(code)
    terms, query = analyse(text), analyse(asked)
    assert set(query) <= set(terms)
    if BY_NAME[code].algorithm not in GRAMS:
        assert analyse(word) == query
        assert max(map(len, terms)) < 25
    as_it_is = bool(set(words(asked.lower())) & set(words(text.lower())))
    for language, finds in ((code, True), ("none", as_it_is)):
        encoder = BM25Encoder(language=language)
        documents = encoder.fit_documents([text, "x"])
        scores = (encoder.encode_queries([asked]) @ documents.T).toarray()[0]
        assert (scores[0] > 0) == finds
        assert scores[1] == 0


def test_scripts_without_spaces_are_cut_everywhere() -> None:
    for code in ("zh", "ja", "th", "lo", "km", "my"):
        size, _ = GRAMS[BY_NAME[code].algorithm]
        assert {len(term) for term in analyzer(code)(SENTENCES[code].text)} <= {1, 2, 3, size}
    assert analyzer("km")("សិទ្ធិ Go") == ["សិទ", "ិទ្", "ទ្ធ", "្ធិ", "go"]


def test_a_journey_in_five_scripts(shell: Call, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    corpus = [{"_id": code, "title": "", "text": SENTENCES[code].text} for code in FIVE]
    queries = [{"_id": f"q-{code}", "text": word} for code, word in FIVE.items()]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (data / f"{name}.jsonl").write_text(text, encoding="utf-8")
    judged = "".join(f"q-{code}\t{code}\t1\n" for code in FIVE)
    (data / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    facts = {
        "dataset": str(data), "output": str(tmp_path / "out"),
        "retrievers": {"words": {"encoder": {"type": "bm25", "language": "cjk"}}},
        "pipelines": {"words": "words"},
        "evaluate": {"measures": ["RR@10"], "latency_queries": 0},
    }  # fmt: skip
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(facts, allow_unicode=True), encoding="utf-8")
    code, _, err = shell("run", file)
    assert code == 0, err
    [system] = json.loads((tmp_path / "out" / "results.json").read_text())["systems"]
    assert "1.0" in json.dumps(system["measures"])
    for language, word in FIVE.items():
        code, out, err = shell("search", tmp_path / "out" / "retrievers" / "words", word)
        assert code == 0, err
        assert SENTENCES[language].text[:12] in out
