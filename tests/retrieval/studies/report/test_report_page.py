"""The report in a browser: drawn, operated by mouse and keyboard, hostile texts shown, not run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browsing, chromium
from report_world import QUERIES, SCRIPT, SYSTEMS, query_id, world

from sluice.retrieval.studies.report.page import build_report

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="needs chromium and chromedriver: see scripts/install-browser"
)

TEXT = "return document.querySelector(arguments[0]).textContent"
BARS = "return document.querySelectorAll('svg.pick rect[data-at]').length"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(world(tmp_path_factory.mktemp("page")), queries=20)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(window: Browser, report: Path) -> Browser:
    window.size(1180, 900)
    window.open(report)
    window.messages()
    everything(window)
    return window


def everything(window: Browser) -> None:
    """Scroll through the page, so that every section is drawn."""
    window.wait(
        "const waiting = document.querySelector('section.lazy:not([hidden])');"
        "if (waiting) waiting.scrollIntoView(); return !waiting"
    )


def test_it_is_drawn_without_a_complaint(window: Browser, report: Path) -> None:
    window.size(1180, 900)
    window.open(report)
    everything(window)
    assert window.messages() == []
    titles = window.run("return [...document.querySelectorAll('section:not([hidden]) h2')].map(h => h.textContent)")  # fmt: skip # noqa: E501
    assert titles == [
        "Results", "Quality against cost", "Query by query", "Failures", "Recall by depth",
        "Score distributions", "Documents and terms", "Training", "What was run",
    ]  # fmt: skip
    unnamed = "return [...document.querySelectorAll('main svg:not([aria-hidden])')].filter(s => !s.getAttribute('aria-label')).length"  # fmt: skip # noqa: E501
    assert window.run(unnamed) == 0
    assert window.run("return document.body.innerHTML.includes('NaN')") is False
    opened = window.run("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < opened < 2000
    names = window.run("return performance.getEntriesByType('resource').map(r => r.name)")
    assert [name for name in names if not name.startswith("file:")] == []


def test_hostile_texts_are_shown_and_not_run(page: Browser) -> None:
    page.type("#queries input", query_id(0))
    page.click("#queries .found button")
    shown = page.run(TEXT, "#detail")
    assert SCRIPT in shown
    assert query_id(0) in shown
    for name in SYSTEMS:
        assert name in shown
    page.run("document.querySelectorAll('#detail details').forEach(d => { d.open = true; })")
    assert 'd01"><svg/onload=window.hacked=1>' in page.run(TEXT, "main")
    assert page.run("return window.hacked") is None
    assert (
        page.run("return document.querySelectorAll('img, iframe, object, [onerror]').length") == 0
    )
    assert page.run("return document.querySelectorAll('main script').length") == 0
    assert page.messages() == []


def test_the_policy_stops_what_is_put_in_by_force(page: Browser) -> None:
    page.run(
        "const box = document.createElement('div'); document.body.append(box);"
        "box.innerHTML = '<img src=x onerror=\"window.hacked=1\">';"
        "const script = document.createElement('script');"
        "script.textContent = 'window.hacked=2'; document.body.append(script);"
    )
    page.wait("return document.images.length === 1 && document.images[0].complete")
    assert page.run("return window.hacked") is None
    assert any("Content Security Policy" in message for message in page.messages())
    reached = "return fetch('http://127.0.0.1:9/').then(() => 'yes', () => 'no')"
    assert page.run(reached) == "no"
    assert any("Content Security Policy" in message for message in page.messages())


def test_the_largest_gain_is_open_and_the_largest_loss_a_click_away(page: Browser) -> None:
    place = "return document.querySelector('svg.pick').getAttribute('aria-valuenow')"
    difference = "return document.querySelector('#detail tr.current td:last-child').textContent"
    value = "return document.querySelector('svg.pick').getAttribute('aria-valuetext')"
    assert page.run(place) == "1"
    gain = page.run(TEXT, "#detail .mono")
    page.type("svg.pick", "\ue010")  # End
    worst = page.run(value).split(", ")[-1]
    page.click("#queries .choices button", 1)
    assert page.run(difference) == worst
    assert worst.startswith("−")
    pressed = "return [...document.querySelectorAll('#queries .choices button')].map(b => b.getAttribute('aria-pressed'))"  # fmt: skip # noqa: E501
    assert page.run(pressed) == ["false", "true"]
    page.click("#queries .choices button", 0)
    assert page.run(TEXT, "#detail .mono") == gain
    assert page.run(pressed) == ["true", "false"]


def test_the_table_uses_the_width_of_the_window(window: Browser, tmp_path: Path) -> None:
    folder = world(tmp_path)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for system in results["systems"]:
        system["latency_ms"]["p99"] = 12_345.678
        system |= dict.fromkeys(("queries_per_second", "bytes_per_document"), 1_234_567.0)
        system |= dict.fromkeys(("documents_per_second", "peak_memory_bytes"), 9_876_543_210.0)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    window.size(1440, 900)
    window.open(build_report(folder, queries=5))
    everything(window)
    headings = "return [...document.querySelectorAll('#table-results th[scope=col]')].map(h => h.textContent)"  # fmt: skip # noqa: E501
    hidden = "const box = document.querySelector('#table-results .scroll'); return box.scrollWidth - box.clientWidth"  # fmt: skip # noqa: E501
    columns = window.run(headings)
    assert "p95 ms" in columns
    assert "p99 ms" not in columns
    assert window.run(hidden) == 0
    window.click("#table-results .more")
    secondary = {"p99 ms", "bytes/doc", "indexed docs/s", "peak MB"}
    assert set(window.run(headings)) - set(columns) == secondary
    assert window.run(hidden) == 0
    wide = "return document.querySelector('#table-results .scroll').clientWidth > document.querySelector('main').clientWidth"  # fmt: skip # noqa: E501
    assert window.run(wide)
    assert window.run("return document.documentElement.scrollWidth") <= 1440
    window.click("#table-results .more")
    assert window.run(headings) == columns


def test_it_says_the_result_what_was_run_and_what_columns_mean(page: Browser) -> None:
    assert page.run(TEXT, "#conclusion").startswith("bm25, the baseline, is best: nDCG@10 ")
    assert page.run("return document.getElementById('static')") is None  # the same, unscripted
    headings = "return [...document.querySelectorAll('#table-results thead button')].map(h => h.title)"  # fmt: skip # noqa: E501
    titles = page.run(headings)
    assert titles[1].startswith("gain of the first 10 documents")
    assert all(titles[1:])
    meanings = page.run("return document.querySelectorAll('#results dt').length")
    assert meanings == len(titles)  # a column each, and the bars
    bars = "return [...document.querySelectorAll('#table-results svg.interval[role=img]')].map(b => b.getAttribute('aria-label'))"  # fmt: skip # noqa: E501
    assert len(page.run(bars)) == 2 * (len(SYSTEMS) - 1)
    assert all(" over bm25" in label for label in page.run(bars))
    drawn = "return [...document.querySelectorAll('#costs .error')].map(l => l.y1.baseVal.value - l.y2.baseVal.value)"  # fmt: skip # noqa: E501
    assert len(page.run(drawn)) == 2 * (len(SYSTEMS) - 1)
    assert all(length > 0 for length in page.run(drawn))
    shown = page.run(TEXT, "#origin")
    assert "bm25 >> cross(depth=20)" in shown
    assert "30 queries, 90 judgements" in shown
    fonts = "return new Set([...document.querySelectorAll('h1, p, td:not(.mono), button, svg text')].map(e => getComputedStyle(e).fontFamily)).size"  # fmt: skip # noqa: E501
    assert page.run(fonts) == 1


def test_it_is_read_without_scripts(window: Browser, report: Path) -> None:
    window.devtools("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        window.size(768, 900)
        window.open(report)
        window.devtools("Emulation.setScriptExecutionDisabled", {"value": False})
        assert window.run(TEXT, "#static .lead").startswith("bm25, the baseline, is best: ")
        assert window.run("return document.querySelectorAll('#static tbody tr').length") > 4
        assert window.run("return document.documentElement.scrollWidth") <= 768
    finally:
        window.devtools("Emulation.setScriptExecutionDisabled", {"value": False})


def test_one_positive_a_query_is_no_alarm(window: Browser, tmp_path: Path) -> None:
    folder = world(tmp_path)
    qrels = tmp_path / "data" / "qrels" / "test.tsv"
    lines = qrels.read_text(encoding="utf-8").splitlines(keepends=True)
    qrels.write_text("".join([lines[0], *lines[1::3]]), encoding="utf-8")
    window.size(1180, 900)
    window.open(build_report(folder, queries=5))
    everything(window)
    assert "first is unjudged" not in window.run(TEXT, "#failures")
    assert "an unjudged first document says nothing" in window.run(TEXT, "#failures")


def test_a_bar_opens_its_query(page: Browser) -> None:
    assert page.run(BARS) == QUERIES
    page.click("svg.pick rect[data-at]", QUERIES - 1)
    chosen = page.run("return document.querySelector('svg.pick').getAttribute('aria-valuenow')")
    assert int(chosen) == QUERIES
    first = page.run(TEXT, "#detail .mono")
    page.type("svg.pick", "\ue011")  # Home
    assert (
        page.run("return document.querySelector('svg.pick').getAttribute('aria-valuenow')") == "1"
    )
    assert page.run(TEXT, "#detail .mono") != first
    page.type("svg.pick", "\ue014\ue014")  # twice to the right
    text = page.run("return document.querySelector('svg.pick').getAttribute('aria-valuetext')")
    assert text.startswith(f"query 3 of {QUERIES}: {page.run(TEXT, '#detail .mono')}")
    assert page.messages() == []


def test_documents_terms_and_ranks_of_a_query(page: Browser) -> None:
    page.type("#queries input", "q04")
    page.click("#queries .found button")
    assert page.run("return document.querySelectorAll('#detail .card').length") == len(SYSTEMS)
    shown = page.run(TEXT, "#detail")
    assert "The query to bm25: 3 terms" in shown
    assert "title 4" in page.run(TEXT, "#detail .card li")
    page.click("#detail .card summary")
    assert "word4" in page.run(TEXT, "#detail .card li .terms")
    row = "return [...document.querySelector('#detail tbody tr .grade').closest('tr').querySelectorAll('td')].map(d => d.textContent)"  # fmt: skip # noqa: E501
    assert page.run(row) == ["2", "1", "–", "1", "20"]  # the best of BM25 is cut off, or turned


def test_a_heading_sorts(page: Browser) -> None:
    column = "return [...document.querySelectorAll('#table-results tbody tr')].map(r => [r.children[0].textContent, r.children[1].textContent])"  # fmt: skip # noqa: E501
    assert [name for name, _ in page.run(column)] == SYSTEMS
    page.click("#table-results thead button", 1)
    values = [float(value.replace("†", "")) for _, value in page.run(column)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 2
    page.click("#table-results thead button", 1)
    assert [float(value.replace("†", "")) for _, value in page.run(column)] == sorted(values)
    order = "return document.querySelectorAll('#table-results th')[1].getAttribute('aria-sort')"
    assert page.run(order) == "ascending"


def test_the_table_is_copied(page: Browser) -> None:
    page.click("#results .choices button", 1)
    assert page.run("return document.querySelector('#results textarea').value").startswith(
        "\\begin{tabular}{lrrrrr}"
    )


def test_a_failure_opens_its_queries(page: Browser) -> None:
    page.click("#failures .count")
    named = page.run(TEXT, "#failures .found button .mono")
    page.click("#failures .found button")
    assert page.run(TEXT, "#detail .mono") == named


def test_choices_draw_again(page: Browser) -> None:
    pick = "const s = document.querySelector(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change'))"  # fmt: skip # noqa: E501
    page.run(pick, "#measure", "R@100")
    label = "return document.querySelector('svg.pick').getAttribute('aria-label').startsWith(arguments[0])"  # fmt: skip # noqa: E501
    page.run("document.querySelector('svg.pick').scrollIntoView()")
    page.wait(label, f"R@100 of {SYSTEMS[3]} minus bm25")
    page.run(pick, "#baseline", SYSTEMS[1])
    page.wait(label, f"R@100 of {SYSTEMS[3]} minus {SYSTEMS[1]}")
    assert page.messages() == []


def test_dark_and_light(window: Browser, report: Path) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    window.size(1180, 900, dark=True)
    window.open(report)
    dark = window.run(colour)
    assert window.run(TEXT, "#theme") == "Light"
    window.click("#theme")
    light = window.run(colour)
    assert sum(map(int, dark[4:-1].split(","))) < 150 < 600 < sum(map(int, light[4:-1].split(",")))
    window.click("#theme")
    assert window.run(colour) == dark
    window.run("localStorage.clear()")


@pytest.mark.thorough
@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_phone_has_no_sideways_scrolling(window: Browser, report: Path, width: int) -> None:
    window.size(width, 800)
    window.open(report)
    everything(window)
    window.type("#queries input", query_id(0))
    window.click("#queries .found button")
    window.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert window.run("return document.documentElement.scrollWidth") <= width
    small = "return Math.min(...[...document.querySelectorAll('svg text')].map(t => parseFloat(getComputedStyle(t).fontSize)))"  # fmt: skip # noqa: E501
    assert window.run(small) >= 11
    colour = "return [...document.querySelector('#detail tr.current').children].map(c => getComputedStyle(c.closest('tr')).backgroundColor === getComputedStyle(c).backgroundColor || getComputedStyle(c).backgroundColor === 'rgba(0, 0, 0, 0)')"  # fmt: skip # noqa: E501
    assert all(window.run(colour))  # the name that stays in view is marked as its row is
