"""Measures equal to trec_eval's, significance, comparison tables.

May import: `retrieval.runs`, `retrieval.documents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.calibration_error import (
        Calibration as Calibration,
        calibration as calibration,
    )
    from sluice.retrieval.evaluation.comparison import compare as compare
    from sluice.retrieval.evaluation.judgements import Judgements as Judgements
    from sluice.retrieval.evaluation.measures import (
        Hubness as Hubness,
        Measure as Measure,
        hubness as hubness,
        parse_measure as parse_measure,
    )
    from sluice.retrieval.evaluation.scores import Scores as Scores, evaluate as evaluate
    from sluice.retrieval.evaluation.significance import (
        power as power,
        queries_needed as queries_needed,
    )
    from sluice.retrieval.evaluation.table import Table as Table
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
