"""Types the forty questions of tests/questions.yaml into the built site's search, in Chromium."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import Browser, browsing, chromium  # noqa: E402

FIRST = 5  # pages among which the answer must be
BOX = "const root = [...document.querySelectorAll('*')].find(e => e.shadowRoot).shadowRoot;"
INPUT = f"{BOX} const i = root.querySelector('input'); i?.focus(); i?.select();"


def unanswered(site: Path) -> list[str]:
    """Return a line for each question whose page is not among the first that are found."""
    if chromium() is None:
        return ["chromium or chromedriver is missing: scripts/install-browser installs both"]
    questions = yaml.safe_load((ROOT / "tests" / "questions.yaml").read_text(encoding="utf-8"))
    missed = []
    with tempfile.TemporaryDirectory() as profile, browsing(Path(profile)) as window:
        window.size(1280, 900)
        window.open(site / "index.html")
        window.wait("return document.querySelector('.md-search__button')")
        window.click(".md-search__button")
        window.wait(f"{INPUT} return i && root.activeElement === i")
        for each in questions:
            found = found_pages(window, site, each["search"])
            page = each["page"].replace(".md", ".html")
            if page not in found[:FIRST]:
                shown = ", ".join(found[:FIRST]) or "nothing"
                missed.append(f"{each['ask']} {each['search']!r} finds {shown}, not {page}")
    return missed


def found_pages(window: Browser, site: Path, words: str) -> list[str]:
    """Return the pages that the search finds, best first, when its results have settled."""
    all_links = f"{BOX} return [...root.querySelectorAll('a')].map(a => a.href)"
    earlier = before = links = window.run(all_links)
    window.run(INPUT)
    window.devtools("Input.insertText", {"text": words})
    for _ in range(60):
        time.sleep(0.15)
        links = window.run(all_links)
        if links == before != earlier:
            break
        before = links
    places = [link.partition("?")[0].partition("#")[0] for link in links]
    return [each.removeprefix(f"{site.as_uri()}/") for each in dict.fromkeys(places)]
