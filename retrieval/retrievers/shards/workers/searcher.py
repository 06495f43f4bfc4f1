"""What a worker does: opens the indexes of shards and searches them, one request at a time."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import IndexFormatError, SluiceError
from sluice.indexing import open_index
from sluice.indexing.index import Index, saved_type
from sluice.retrieval.retrievers.shards.workers.crew import (
    Message,
    packed,
    queries_read,
    state_of,
    unpacked,
)

log = logging.getLogger("sluice")

STATES = 3  # of a shard that stay open: searches of an earlier one may be under way


class ShardSearcher:
    """Answers requests about the indexes of shards, which it opens when they are first named.

    Threads may call it together. A request names a folder, a generation and the hash of its
    manifest, so that all shards of a search are of one state, whatever changes meanwhile: another
    folder may take the place of one, with generations of the same names.
    """

    def __init__(self) -> None:
        self._states: dict[str, OrderedDict[str, Index]] = {}
        self._opening = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request, which may be an error."""
        try:
            return self._answered(unpacked(request))
        except (SluiceError, OSError) as error:
            return packed({"error": [type(error).__name__, str(error)]})
        except Exception as error:  # the service has the others' answers
            log.exception("a shard could not be searched")
            return packed({"error": [type(error).__name__, f"{type(error).__name__}: {error}"]})

    def _answered(self, message: Message) -> bytes:
        values = message.values
        index = self._opened(*(values[key] for key in ("folder", "generation", "state", "allow")))
        if values["do"] == "open":
            return _facts(index)
        queries, others = queries_read(message)
        params = values["params"]
        if values["do"] == "passages":
            passages: Any = index
            return packed({}, [passages.winning_passages(queries, others[0], params=params)])
        keep = None
        if others:
            keep = np.unpackbits(others[0], count=index.rows).astype(np.bool_)
        hits = index.search(queries, values["k"], keep=keep, params=params)
        return packed({}, [hits.rows, hits.scores])

    def _opened(self, folder: str, generation: str, state: str, allow: list[str]) -> Index:
        with self._opening:
            states = self._states.get(folder, OrderedDict())
            index = states.get(state)
            if index is None:
                if state_of(Path(folder), generation) != state:
                    raise IndexFormatError(
                        f"{folder}: another folder took its place; open the retriever again"
                    )
                index = open_index(Path(folder), generation=generation, allow=allow)
                for gone in [each for each in self._states if not Path(each).is_dir()]:
                    del self._states[gone]  # by a reshard or a rebuild: files that no folder has
                self._states[folder] = states
                states[state] = index
                while len(states) > STATES:
                    states.popitem(last=False)
            states.move_to_end(state)
            return index


def _facts(index: Index) -> bytes:
    values = {
        "type": saved_type(index.innermost),
        "metric": index.metric,
        "width": index.width,
        "rows": index.rows,
        "by_passages": index.by_passages,
        "parameters": list(index._search_parameters()),
        "size_bytes": index.size_bytes,
        "resident_bytes": index.resident_bytes,
        "encoder_fingerprint": index.encoder_fingerprint,
    }
    return packed(values, [index._live.deleted])
