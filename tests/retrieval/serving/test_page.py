"""The page in Chromium, over a live service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CONTRAST, Browser, browsing, chromium

from sluice.retrieval.experiments.experiment import Experiment

needs_browser = pytest.mark.skipif(
    chromium() is None, reason="no Chromium with its driver: scripts/install-browser"
)
HITS = "return [...document.querySelectorAll('.hit')].map(e => e.dataset.id)"


@pytest.fixture(scope="module")
def page(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        browser.size(1200, 900)
        yield browser


@needs_browser
def test_search_as_you_type(page: Browser, address: str, library: Experiment) -> None:
    page.visit(f"{address}/")
    page.wait("return document.getElementById('pipeline').value === 'cascade'")
    assert "40 documents" in page.run("return document.getElementById('facts').textContent")
    page.type("#query", "gold river")
    page.wait("return document.querySelectorAll('.hit').length === 10")
    expected = [hit.doc_id for hit in library.stage("cascade").search("gold river", 10)]
    assert page.run(HITS) == expected
    page.wait("return document.querySelectorAll('.note').length > 0")
    marked = page.run("return [...document.querySelectorAll('mark')].map(e => e.textContent)")
    assert set(marked) <= {"gold", "river"}
    assert page.run("return location.search") == "?q=gold+river"
    assert page.messages() == []


@needs_browser
def test_an_address_brings_two_pipelines_side_by_side(page: Browser, address: str) -> None:
    page.visit(f"{address}/?q=gold&beside=bm25&k=5")
    page.wait("return document.querySelectorAll('.column').length === 2")
    assert page.run("return document.querySelectorAll('.hit').length") <= 10
    notes = page.run("return [...document.querySelectorAll('.note')].map(e => e.textContent)")
    assert any("bm25" in note for note in notes)
    page.click(".hit")
    page.wait("return document.getElementById('document').open")
    page.click("#close")
    assert not page.run("return document.getElementById('document').open")


@needs_browser
def test_markup_is_shown_as_text(page: Browser, address: str) -> None:
    """What the service answers is text, whatever it has inside."""
    page.visit(f"{address}/")
    page.wait("return document.getElementById('pipeline').value === 'cascade'")
    evil = "<img src=x onerror=\"document.title='broken'\">"
    page.run(
        """const hit = {id: arguments[0], rank: 1, score: 1, title: arguments[0],
                        snippet: {text: arguments[0], marks: [[0, 4]]}};
           show([{pipeline: arguments[0], stages: [], hits: [hit]}]);""",
        evil,
    )
    assert page.run("return document.querySelector('.hit .title').textContent") == evil
    assert page.run("return document.querySelector('.hit p').textContent") == evil
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.run("return document.title") != "broken"


@needs_browser
def test_words_that_tokens_met_are_shown_by_what_they_add(page: Browser, address: str) -> None:
    page.visit(f"{address}/")
    page.wait("return document.getElementById('pipeline').value === 'cascade'")
    snippet = {
        "text": "🪙 gold in <b>rivers</b>",
        "words": [
            {"start": 2, "end": 6, "adds": 1.5, "tokens": ["gold", "metal"]},
            {"start": 13, "end": 19, "adds": 0.5, "tokens": ["river"]},
        ],
    }
    shown = page.run(
        """const found = met(arguments[0]);
           return [found.textContent, found.querySelectorAll('b').length,
                   ...[...found.querySelectorAll('mark')].map(
                     e => [e.textContent, e.className, e.title])];""",
        snippet,
    )
    assert shown == [
        snippet["text"], 0, ["gold", "met4", "met by gold, metal: adds 1.500"],
        ["rivers", "met2", "met by river: adds 0.500"],
    ]  # fmt: skip


@needs_browser
def test_errors_and_nothing_are_said(page: Browser, address: str) -> None:
    page.visit(f"{address}/?q=gold&where=%7B%22colour%22%3A%22red%22%7D")
    page.wait("return document.getElementById('status').className.includes('error')")
    assert "colour" in page.run("return document.getElementById('status').textContent")
    page.visit(f"{address}/?q=qwertyuiop&pipeline=bm25")
    page.wait("return document.querySelector('.empty') !== null")
    text: Any = page.run("return document.querySelector('.empty').textContent")
    assert text == "No document was found."


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_telephone_and_contrast(page: Browser, address: str, dark: bool, tmp_path: Path) -> None:
    page.size(390, 800, dark=dark)
    page.visit(f"{address}/?q=gold")
    page.wait("return document.querySelectorAll('.hit').length > 0")
    assert page.run("return document.documentElement.scrollWidth") <= 390
    for selector in (".title", ".rank", ".stages", "#facts", ".hit p"):
        assert page.run(CONTRAST, selector) >= 4.5, selector
    unlabelled = page.run(
        "return [...document.querySelectorAll('input, select')].filter("
        "e => !e.labels.length && !e.ariaLabel).length"
    )
    assert unlabelled == 0
    page.size(1200, 900)
