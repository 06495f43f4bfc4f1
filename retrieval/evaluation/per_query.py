"""Per-query values of systems side by side, and tests that two systems are equivalent."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.comparison import aligned, baseline_of
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.significance import equivalence
from sluice.retrieval.evaluation.table import Table


def per_query_csv(scores: Mapping[str, Scores], measure: str, baseline: str | None = None) -> str:
    """Return a line for each query: every system's value, and its difference to the baseline's.

    Queries stand by the last system's difference, the largest first; equal ones in the qrels'
    order.
    """
    base, name = baseline_of(scores, baseline), str(parse_measure(measure))
    others = [system for system in scores if system != base]
    queries = list(scores[base].per_query[name])
    values = {system: aligned(scores[base], scores[system], name) for system in scores}
    differences = {system: values[system] - values[base] for system in others}
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["query", *scores, *(f"{system} - {base}" for system in others)])
    last = differences[others[-1]] if others else values[base]
    for place in sorted(range(len(queries)), key=lambda place: -last[place]):
        cells = [float(values[system][place]) for system in scores]
        cells += [float(differences[system][place]) for system in others]
        writer.writerow([queries[place], *cells])
    return stream.getvalue()


def equivalences(scores: Mapping[str, Scores], share: float, baseline: str | None = None) -> Table:
    """Test, by measure, which systems are the baseline's equals to within a share of its mean.

    Two one-sided paired t-tests, see ``sluice.retrieval.evaluation.significance.equivalence``;
    p-values are not corrected. A baseline whose mean is 0 has no bound, and its row is empty.
    """
    if not 0 < share < 1:
        raise ConfigError(f"equivalence: {share}; expected a share between 0 and 1, such as 0.05")
    base = baseline_of(scores, baseline)
    table = Table(columns={"difference": "+.4f", "bound": ".4f", "p (TOST)": ".4g"})
    for name, mean in scores[base].mean.items():
        for system in (system for system in scores if system != base):
            row = table.rows.setdefault(f"{system} = {base}, {name}", {})
            if mean <= 0:
                continue
            one, other = (aligned(scores[base], scores[s], name) for s in (system, base))
            found = equivalence(one, other, share * mean)
            row["difference"], row["bound"] = found.difference, share * mean
            row["p (TOST)"] = found.p_value
    table.caption = f"Equivalent to within {share:.0%} of {base}'s mean where p is small."
    return table
