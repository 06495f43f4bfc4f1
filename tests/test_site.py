"""The documentation site: pages, links, search, three widths, light and dark."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from browser import Browser, browsing, chromium
from places import ROOT
from site_scripts import site_script

pytestmark = pytest.mark.thorough

pages, checks, build = (site_script(name) for name in ("pages", "checks", "build"))
HAS_GENERATOR = importlib.util.find_spec("zensical") is not None

HOME = """# Home

Gold lies in the river. See [the other](other.md#second-part), [code](../code.py),
[all decisions](decisions/) and `[no](link.md)`.
- an item

| a | b |
|---|---|
| `a \\| b` | [other](other.md) |

```sh
[kept](as-it-is.md)
```
"""
OTHER = "# Other\n\nA sluice washes gravel.\n\n## Second part\n\nBack [home](index.md).\n"
NAV = "nav:\n  - Home: index.md\n  - How to:\n      - Other: other.md\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project with documentation of three pages, set up as ours is."""
    root = tmp_path_factory.mktemp("project")
    (root / "docs" / "decisions").mkdir(parents=True)
    (root / "docs" / "index.md").write_text(HOME)
    (root / "docs" / "other.md").write_text(OTHER)
    (root / "docs" / "decisions" / "001.md").write_text("# 001: Why\n\nBecause.\n")
    shutil.copy(ROOT / "docs" / "site.css", root / "docs")
    (root / "code.py").write_text("print('[x](y)')\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[0]
    (root / "mkdocs.yml").write_text(settings + NAV)
    return root


def test_a_page_as_the_generator_reads_it(root: Path, tmp_path: Path) -> None:
    made = pages.Pages(root, tmp_path / "pages")
    made.write()
    text = (tmp_path / "pages" / "index.md").read_text()
    assert made.problems == []
    assert "[the other](other.md#second-part), [code](source/code.py.md)" in text
    assert "[all decisions](decisions/index.md) and `[no](link.md)`.\n\n- an item" in text
    assert "| `a | b` | [other](other.md) |" in text
    assert "[kept](as-it-is.md)" in text
    shown = (tmp_path / "pages" / "source" / "code.py.md").read_text()
    assert "`````python\nprint('[x](y)')\n`````" in shown
    assert "exclude: true" in shown
    assert "[001: Why](001.md)" in (tmp_path / "pages" / "decisions" / "index.md").read_text()


def test_links_that_lead_nowhere_are_named(root: Path, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# A\n\n[b](b.md) [out](../../x.md) [web](https://a.example)\n")
    made = pages.Pages(tmp_path, tmp_path / "pages")
    made.write()
    assert made.problems == ["docs/index.md: no file b.md", "docs/index.md: no file ../../x.md"]


def test_the_built_site_is_checked(tmp_path: Path) -> None:
    assert checks.problems(tmp_path) == [f"{tmp_path}: no page was built"]
    (tmp_path / "b.html").write_text('<h1 id="x">B</h1> M[new][old] <code>[a][b]</code>')
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">1</a><a href="b.html#y">2</a><a href="c.html">3</a><a href="#z">4</a>'
        '<script src="https://a.example/x.js"></script><img src="no.png"><p>See [that][ref].</p>'
        '<a href="https://a.example">elsewhere</a>'
    )
    assert checks.problems(tmp_path) == [
        "a.html: loads https://a.example/x.js from elsewhere",
        "a.html: loads no.png, which does not exist",
        "a.html: links to b.html#y: the page has no such heading",
        "a.html: links to c.html, which does not exist",
        "a.html: links to #z: the page has no such heading",
        "a.html: shows '[that][ref]': a link or reference that was not resolved",
    ]


def test_our_pages_have_a_place_and_lead_somewhere(tmp_path: Path) -> None:
    made = pages.Pages(ROOT, tmp_path / "pages")
    made.write()
    assert made.problems == []
    nav = {page for _, page in build.navigation(ROOT / "mkdocs.yml")}
    ours = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    assert {page for page in ours - nav if not page.startswith("decisions/")} == set()
    assert {page for page in nav - ours if not (tmp_path / "pages" / page).exists()} == set()
    for section, page in build.navigation(ROOT / "mkdocs.yml"):
        if section and page in ours:
            assert build.first_sentence(ROOT / "docs" / page), page


@pytest.fixture(scope="module")
def site(root: Path) -> Path:
    if not HAS_GENERATOR:
        pytest.skip("needs zensical: pip install 'sluice-ir[docs]'")
    assert build.build(root) == []
    return root / "build" / "site"


def test_a_fault_fails_the_build(root: Path, tmp_path: Path) -> None:
    if not HAS_GENERATOR:
        pytest.skip("needs zensical: pip install 'sluice-ir[docs]'")
    broken = shutil.copytree(root, tmp_path / "broken", ignore=shutil.ignore_patterns("build"))
    (broken / "docs" / "index.md").write_text("# A\n\n[b](other.md#no-such-part)\n")
    (broken / "docs" / "third.md").write_text("# Third\n")
    assert build.build(broken) == [
        "mkdocs.yml: no place in nav for docs/third.md",
        "index.html: links to other.html#no-such-part: the page has no such heading",
    ]


def test_pages_for_programs(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert text.startswith("# Sluice\n\n> ")
    assert "## How to\n\n- [Other](other.md): A sluice washes gravel.\n" in text
    assert (site / "other.md").read_text() == OTHER


@pytest.mark.skipif(chromium() is None, reason="needs chromium: see scripts/install-browser")
def test_it_is_read_and_searched_without_a_network(site: Path, tmp_path: Path) -> None:
    with browsing(tmp_path) as window:
        for width, dark in ((390, True), (820, False), (1440, True)):
            window.size(width, 900, dark=dark)
            window.open(site / "index.html")
            window.run("localStorage.clear()")  # the last visit's choice of colours
            window.open(site / "index.html")
            window.wait("return document.querySelector('.md-search__button')")
            scheme = "return document.body.dataset.mdColorScheme"
            assert window.wait(scheme) == ("slate" if dark else "default")
            assert window.run("return document.documentElement.scrollWidth") <= width
        names = window.run("return performance.getEntriesByType('resource').map(r => r.name)")
        assert [name for name in names if not name.startswith("file:")] == []
        assert found(window, "gravel") == ["other.html"]
        assert found(window, "gold river")[0] == "index.html"
        assert window.messages() == []


def found(window: Browser, words: str) -> list[str]:
    """Type into the search and return the pages that it finds, best first."""
    box = "const root = [...document.querySelectorAll('*')].find(e => e.shadowRoot).shadowRoot;"
    if not window.run(f"{box} return root.activeElement"):
        window.click(".md-search__button")
    ready = "const i = root.querySelector('input'); i?.focus(); i?.select();"
    window.wait(f"{box} {ready} return i && root.activeElement === i")
    window.devtools("Input.insertText", {"text": words})
    first = words.split()[0]
    window.wait(f"{box} return root.querySelector('a')?.href.includes('h={first}')")
    links = window.run(f"{box} return [...root.querySelectorAll('a')].map(a => a.href)")
    return list(dict.fromkeys(link.rpartition("/")[2].partition("?")[0] for link in links))
