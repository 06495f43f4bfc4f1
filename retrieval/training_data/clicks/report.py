"""What a click model makes of a log, as a table and as a line."""

from __future__ import annotations

from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.evaluation.table import Table, Value
from sluice.retrieval.training_data.clicks.models import Estimate

SHOWN = 5  # positions in a line


def looked_at(estimated: Estimate) -> Table:
    """Return the figures by position: what was shown, clicked and, by the model, looked at."""
    table = Table({"impressions": ",.0f", "clicks": ",.0f", "clicked": ".4f", "looked at": ".4f"})
    figures = zip(
        estimated.positions.tolist(), estimated.impressions.tolist(), estimated.clicks.tolist(),
        estimated.examination.tolist(), strict=True,
    )  # fmt: skip
    for position, shown, clicks, examination in figures:
        row: dict[str, Value] = {
            "impressions": shown, "clicks": clicks, "clicked": clicks / shown,
            "looked at": examination,
        }  # fmt: skip
        table.rows[f"position {position}"] = row
    return table


def summary(estimated: Estimate) -> str:
    """Return one line about a log: its size, and where its users looked."""
    counts, clicks = estimated.counts, int(estimated.clicks.sum())
    by_position = zip(estimated.positions.tolist(), estimated.examination.tolist(), strict=True)
    shares = [f"{position}: {share:.2f}" for position, share in by_position]
    more = ", ..." if len(shares) > SHOWN else ""
    return (
        f"{plural(counts.rows, 'row')}, {plural(len(counts.queries), 'query')}, "
        f"{plural(len(counts.documents), 'document')}, {plural(clicks, 'click')}; "
        f"{estimated.model}: looked at by position {', '.join(shares[:SHOWN])}{more}"
    )
