"""PyTerrier: a stage as a ``pyterrier.Transformer``, with all of its operators.

python-terrier is an optional package: ``pip install 'sluice-ir[interop]'``. It needs no Java here.
"""

from __future__ import annotations

import functools
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.exchange.adapters.frames import FrameTexts, frame_of, queries_of, run_of
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import DEPTH


def pyterrier_transformer(stage: Stage, k: int = DEPTH) -> Any:
    """Return a transformer of ``stage``: from ``qid, query`` to ``qid, query, docno, score, rank``.

    A retriever or pipeline finds ``k`` documents for each query; of a frame of results it reads the
    queries alone. A reranker takes such a frame in its order (``rank``, else ``score``, else as it
    stands), reads texts from its own document store or the column ``text``, and keeps all columns.
    Rows come best first with ranks from 0; scores are the run's (``Run.to_dict``). Raises
    ``MissingPackageError``.
    """
    if not isinstance(stage, Stage):
        raise ConfigError(f"expected a stage, as a Retriever, got {type(stage).__name__}")
    return _transformer_class()(stage, whole_number(k, "k", 1))


@functools.cache
def _transformer_class() -> Any:
    try:
        import pyterrier as pt
    except ImportError:
        raise MissingPackageError("python-terrier", "interop", "a PyTerrier transformer") from None

    class SluiceTransformer(pt.Transformer):  # type: ignore[misc]
        """A stage on data frames."""

        def __init__(self, stage: Stage, k: int) -> None:
            self.stage, self.k = stage, k

        def transform(self, inp: Any) -> Any:
            stage, needs = self.stage, ["docno"] if self.stage.needs_candidates else []
            pt.validate.columns(inp, includes=["qid", "query", *needs])
            asked = queries_of(inp)
            if needs and "text" in inp:
                stage = stage.attached(FrameTexts(inp))
            depth, given = (None, run_of(inp)) if needs else (self.k, None)
            run = stage.run(asked, given, depth)
            known = inp if needs else inp[pt.model.query_columns(inp)].drop_duplicates("qid")
            return frame_of(run if depth is None else run.top(depth), known, on=["qid", *needs])

        def __repr__(self) -> str:
            return f"SluiceTransformer({self.stage.name!r}, k={self.k})"

    return SluiceTransformer
