"""Build the documentation site and check it: scripts/docs runs this in its environment."""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from ask import unanswered  # noqa: E402
from checks import problems  # noqa: E402
from pages import Pages, title  # noqa: E402

SHIM = "https://unpkg.com/iframe-worker/shim"  # what the theme loads for pages opened as files
WORKER = "assets/javascripts/search-worker.js"  # and ours in its place


def build(root: Path, python: str = sys.executable) -> list[str]:
    """Build ``root``'s site cold, into its build/site, and return what is wrong with it."""
    target = root / "build"
    for folder in (target / "site", root / ".cache"):  # the generator's cache is not sound
        shutil.rmtree(folder, ignore_errors=True)
    pages = Pages(root, target / "pages")
    pages.write()
    nav = navigation(root / "mkdocs.yml")
    named = {page for _, page in nav}
    written = {str(file.relative_to(root / "docs")) for file in (root / "docs").rglob("*.md")}
    missing = [page for page in written - named if not page.startswith("decisions/")]
    faults = [
        *pages.problems,
        *(f"mkdocs.yml: no place in nav for docs/{page}" for page in sorted(missing)),
        *(f"mkdocs.yml: nav names {page}, which does not exist"
          for page in sorted(named) if not (target / "pages" / page).exists()),
    ]  # fmt: skip
    command = [python, "-m", "zensical", "build", "--config-file", str(root / "mkdocs.yml")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode or not (target / "site" / "index.html").exists():
        return [*faults, f"zensical: {(done.stdout + done.stderr).strip()}"]
    site = target / "site"
    _search_without_a_server(site)
    (site / "llms.txt").write_text(llms(root, nav), encoding="utf-8")
    for section, page in nav:  # the same pages as plain Markdown, for programs that read them
        if section:
            (site / page).parent.mkdir(exist_ok=True)
            shutil.copyfile(target / "pages" / page, site / page)
    return [*faults, *problems(site)]


def navigation(file: Path) -> list[tuple[str, str]]:
    """Return the section and the file of each page in the navigation."""
    found: list[tuple[str, str]] = []

    def walk(entries: list[Any], section: str) -> None:
        for entry in entries:
            ((name, below),) = entry.items()
            if isinstance(below, str):
                found.append((section, below))
            else:
                walk(below, section or name)

    walk(yaml.safe_load(file.read_text(encoding="utf-8"))["nav"], "")
    return found


def llms(root: Path, nav: list[tuple[str, str]]) -> str:
    """Return llms.txt (llmstxt.org): every page of the navigation with its first sentence."""
    settings = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    last = ""
    for section, page in nav:
        file = root / "docs" / page
        if not section or not file.exists():
            continue
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        lines.append(f"- [{title(file)}]({page}): {first_sentence(file)}")
    return "\n".join(lines) + "\n"


def first_sentence(file: Path) -> str:
    """Return the first sentence of a page's first paragraph, without links and line ends."""
    for block in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
        if block[:1].isalpha() or (block[:1] in "`*[" and block[:3] != "```"):
            text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(block.split()))
            return re.split(r"(?<=[.!?]) ", text)[0]
    return ""


def _search_without_a_server(site: Path) -> None:
    """Let pages opened as files search without loading anything from a network.

    A page of file:// may not start a worker from a file; the theme would load a substitute from a
    public server. Ours starts the worker from its text, which it holds.
    """
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    text = json.dumps(worker.read_text(encoding="utf-8")).replace("</", "<\\/")
    code = (
        'if (location.protocol === "file:") {\n'
        f"  const text = {text};\n"
        "  const Plain = window.Worker;\n"
        "  window.Worker = class extends Plain {\n"
        "    constructor() { super(URL.createObjectURL(new Blob([text]))); }\n"
        "  };\n"
        "}\n"
    )
    (site / WORKER).write_text(code, encoding="utf-8")
    for page in site.rglob("*.html"):
        depth = len(page.relative_to(site).parts) - 1
        source = page.read_text(encoding="utf-8")
        page.write_text(source.replace(SHIM, "../" * depth + WORKER), encoding="utf-8")


def _arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    ask = "then type forty questions into its search; each must find its page (needs Chromium)"
    yield "--ask", {"action": "store_true", "help": ask}
    yield "--serve", {"action": "store_true", "help": "then serve it on 127.0.0.1"}
    yield "--port", {"type": int, "default": 8321, "help": "the port of --serve (8321)"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/docs", description=(__doc__ or "").split(":")[0])
    for name, settings in _arguments():
        parser.add_argument(name, **settings)
    chosen = parser.parse_args()
    found = build(ROOT)
    for line in found:
        print(line, file=sys.stderr)
    if found:
        sys.exit(f"error: the site has {len(found)} problems; each line above names the page")
    site = ROOT / "build" / "site"
    print(f"{site / 'index.html'}: built, every link and reference checked")
    if chosen.ask:
        missed = unanswered(site)
        for line in missed:
            print(line, file=sys.stderr)
        if missed:
            sys.exit(f"error: the search misses {len(missed)} of the questions")
        print("every question finds its page")
    if chosen.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
        try:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", chosen.port), handler)
        except (OSError, OverflowError) as error:
            sys.exit(f"error: port {chosen.port}: {error}; choose another with --port")
        with server:
            print(f"http://127.0.0.1:{chosen.port}/ (Ctrl-C stops it)", flush=True)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                return


if __name__ == "__main__":
    main()
