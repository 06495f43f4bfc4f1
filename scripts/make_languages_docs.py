"""Write the languages in docs/how-to/languages.md: python scripts/make_languages_docs.py."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "languages.md"
BEGIN, END = "<!-- languages: scripts/make_languages_docs.py -->\n", "<!-- end of languages -->\n"


def page(text: str) -> str:
    """Return the page with its table made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def table() -> str:
    """Return the languages, what ``language`` is, and how each is analysed."""
    from sluice.encoders.lexical.languages import LANGUAGES

    lines = ["| language | `language:` | broken into |", "| --- | --- | --- |"]
    stemmed = []
    for each in LANGUAGES:
        names = ", ".join(f"`{name}`" for name in each.names)
        if each.breaking == "words" and each.stemming.startswith("Snowball"):
            short = [f"`{name}`" for name in each.names if name != each.name.lower()]
            stemmed.append(f"{each.name} {', '.join(short)}")
        else:
            left_out = f"; {each.stop_words} stop words, Lucene's" if each.stop_words else ""
            stemming = "" if each.stemming == "none" else f"; {each.stemming}"
            lines.append(f"| {each.name} | {names} | {each.breaking}{stemming}{left_out} |")
    lines += ["", f"Words, and Snowball's stemmer (`arabic` is `ar`): {'; '.join(stemmed)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
