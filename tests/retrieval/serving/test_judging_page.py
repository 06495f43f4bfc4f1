"""The judging page in Chromium, over a live service: by keys alone, wide and narrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CONTRAST, Browser, browsing, chromium
from serving import EXTRA, over_http

from sluice.retrieval.jobs import index
from sluice.retrieval.serving.judging.judgements import read_judgements

needs_browser = pytest.mark.skipif(
    chromium() is None, reason="no Chromium with its driver: scripts/install-browser"
)
EVIL = "<img src=x onerror=\"document.title='broken'\"> gold"
TEXTS = {"a": "gold in the river", "b": "a river of gold 🪙 gold", "c": "stone", "d": EVIL}
PRESS = """document.activeElement.dispatchEvent(
  new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"""
SHOWN = "return document.querySelector('#candidates [aria-current]').ariaLabel"
PLACES = (
    "return [...document.querySelectorAll('#candidates button')].map(e => e.textContent).join('')"
)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four documents, indexed, and a file of queries."""
    folder = tmp_path_factory.mktemp("judged")
    lines = [json.dumps({"_id": name, "text": text}) for name, text in TEXTS.items()]
    (folder / "notes.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "queries.tsv").write_text("one\tgold\ntwo\tstone\nthree\tqwertyuiop\n")
    index(
        {
            "dataset": {"corpus": str(folder / "notes.jsonl")},
            "output": str(folder / "my"),
            "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        }
    )
    return folder


@pytest.fixture
def world(notes: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a service where nobody has judged, and the log of its judgements."""
    pytest.importorskip("uvicorn", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings

    log = tmp_path / "log.jsonl"
    settings = ServeSettings(port=0, judge=str(notes / "queries.tsv"), judgements=log)
    with over_http(notes / "my", settings) as address:
        yield address, log


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as browser:
        browser.size(1200, 900)
        yield browser


def press(page: Browser, keys: str) -> None:
    """Press keys one after another, each when the page has done what the one before asked."""
    for key in keys:
        page.run(PRESS, key)
        page.wait("return !state.busy")


def judging(page: Browser, address: str) -> None:
    """Open the first query as somebody whose name the browser knows."""
    page.visit(f"{address}/judge")
    page.run("localStorage.setItem('sluice-assessor', 'Ann Ä')")
    page.visit(f"{address}/judge?query=one")
    page.wait("return state.task !== null && !state.busy")


@needs_browser
def test_judging_by_keys_alone(page: Browser, world: tuple[str, Path]) -> None:
    address, path = world
    page.visit(f"{address}/judge")
    page.wait("return document.activeElement.id === 'assessor'")
    assert "3 queries to judge" in page.run("return document.getElementById('nothing').textContent")
    page.type("#assessor", "Ann  Ä\ue007")  # the key Enter
    page.wait("return document.querySelectorAll('#candidates button').length === 3")
    order = page.run("return state.task.documents.map(e => e.id)")
    assert set(order) == {"a", "b", "d"}
    press(page, "3")
    assert page.run(PLACES) == "3··"
    press(page, "jjjkc")  # the last, back to the second, and into the comment
    assert page.run(SHOWN) == "Document 2: not judged"
    page.type("#comment", "2 doubts\ue007")
    page.wait("return document.activeElement.id === 'candidate'")
    press(page, "0s")
    assert page.run("return document.getElementById('query-text').textContent") == "stone"
    press(page, "1")
    done = "return document.querySelector('#nothing h2').textContent"
    assert page.run(done).startswith("All done")
    assert "3 documents of 3 queries" in page.run(
        "return document.getElementById('nothing').textContent"
    )
    press(page, "u")
    assert page.run("return location.search") == "?query=two"
    press(page, "upn")
    assert page.run("return document.getElementById('query-text').textContent") == "stone"
    press(page, "n")  # nothing was found for the third query
    assert page.run("return document.getElementById('grading').hidden")
    state = read_judgements(path)
    assert state.assessors == ["Ann Ä"]
    said = state.judged("one", "Ann Ä")
    assert [said[each].grade for each in order] == [3, 0, None]
    assert said[order[1]].comment == "2 doubts"
    assert not said[order[2]].skipped  # taken back
    assert page.messages() == []


@needs_browser
def test_results_are_shown_and_saved(
    page: Browser, world: tuple[str, Path], tmp_path: Path
) -> None:
    judging(page, world[0])
    press(page, "30?")
    assert page.run("return document.getElementById('keys').open")
    press(page, "3")  # not while a dialog is open
    assert page.run(PLACES) == "30·"
    page.run("document.getElementById('keys').close()")
    page.devtools(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    press(page, "r")
    table = page.run("return document.getElementById('agreement-figures').textContent")
    assert "Ann Ä" in table
    assert "how they agree is unknown" in table
    page.click("#export button")
    page.wait("return document.getElementById('export-status').textContent.includes('Saved')")
    file = tmp_path / "qrels.tsv"
    page.wait("return true")
    for _ in range(100):
        if file.exists():
            break
        page.run("return new Promise(done => setTimeout(done, 20))")
    assert file.read_text().startswith("query-id\tcorpus-id\tscore\none\t")


@needs_browser
def test_documents_are_text_and_errors_are_said(page: Browser, world: tuple[str, Path]) -> None:
    judging(page, world[0])
    place = page.run("return state.task.documents.findIndex(e => e.id === 'd')")
    page.run("show(arguments[0])", place)
    assert page.run("return document.getElementById('candidate-text').textContent") == EVIL
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.run("return document.title") == "Judge · Sluice"
    page.run("show(state.task.documents.findIndex(e => e.id === 'b'))")
    marks = "return [...document.querySelectorAll('#candidate-text mark')].map(e => e.textContent)"
    assert page.run(marks) == ["gold", "gold"]  # behind an emoji too
    before = page.run(PLACES)
    page.run("state.task.documents[state.place].id = 'none'")
    press(page, "1")
    assert "is not a candidate" in page.run("return document.getElementById('status').textContent")
    assert page.run(PLACES) == before  # it was not added, and the page does not go on
    assert page.run("return document.getElementById('status').className") == "error"
    hidden = "return document.getElementById('access').hidden"
    assert page.run(hidden)
    page.run("failed(Object.assign(new Error('no scope'), { status: 403 }))")
    assert not page.run(hidden)  # another key may have it
    page.messages()


@needs_browser
def test_without_judging_the_page_says_how(page: Browser, address: str) -> None:
    page.visit(f"{address}/judge")
    page.wait("return !document.getElementById('nothing').hidden")
    assert "--judge" in page.run("return document.getElementById('nothing').textContent")
    page.messages()


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_telephone_and_contrast(page: Browser, world: tuple[str, Path], dark: bool) -> None:
    page.size(390, 800, dark=dark)
    judging(page, world[0])
    assert page.run("return document.documentElement.scrollWidth") <= 390
    visible = "return document.getElementById('grades').getBoundingClientRect().bottom"
    assert page.run(visible) <= 800
    for selector in ("#query-place", "#query-text", "#candidate-text", "#facts", "#progress-text",
                     *(f"#grades .grade{grade} span" for grade in range(4))):  # fmt: skip
        assert page.run(CONTRAST, selector) >= 4.5, selector
    unlabelled = page.run(
        "return [...document.querySelectorAll('input, select, button')].filter("
        "e => !(e.labels && e.labels.length) && !e.ariaLabel && !e.textContent).length"
    )
    assert unlabelled == 0
    page.size(1200, 900)
