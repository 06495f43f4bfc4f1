"""HTML of small tables, which notebooks show in the place of a ``repr``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a caption; every text is escaped."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    titles = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f"<table><caption>{html.escape(caption)}</caption>{titles}<tbody>{body}</tbody></table>"
