"""Which of a query's fitting candidates are taken: by texts that differ, by order, by a judge."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from sluice.training.negatives.candidates import FITS, Candidates
from sluice.training.negatives.judge import Judge, JudgedPair, judged
from sluice.training.negatives.provenance import CODES
from sluice.training.negatives.settings import Mining
from sluice.training.negatives.text_identity import EMPTY, TextKeys, TextSource, texts_of


def apply_judge(
    batch: Sequence[Candidates],
    judge: Judge,
    mining: Mining,
    keys: TextKeys | None,
    queries: Mapping[str, str],
    texts: TextSource | None,
) -> None:
    """Have the first fitting candidates and the positives judged, and drop by what comes back."""
    wanted: list[tuple[Candidates, str, int | None]] = []
    for found in batch:
        pool = distinct(found, found.fitting, mining.judge_depth, keys)
        below = set(found.fitting).difference(pool)
        found.reasons[list(below)] = CODES["unjudged"]
        if pool:
            wanted += [(found, document, None) for document in found.known]
            wanted += [(found, found.documents[place], place) for place in pool]
    read: Mapping[str, str] = {}
    if judge.needs_texts and texts is not None:
        read = texts_of(texts, list(dict.fromkeys(document for _, document, _ in wanted)))
        wanted = [item for item in wanted if item[1] in read and item[0].query in queries]
    pairs = [
        JudgedPair(found.query, queries.get(found.query, ""), document, read.get(document, ""))
        for found, document, _ in wanted
    ]
    scores = judged(judge, pairs).tolist()
    for (found, document, place), score in zip(wanted, scores, strict=True):
        if place is None and not math.isnan(score):
            found.judged_positives[document] = score
        elif place is not None:
            found.judged[place] = score
    for found in batch:
        if found.judged_positives:
            positive = mining.reference(found.judged_positives.values())
            limit = positive - (mining.judge_margin or 0.0)
            fits = found.reasons == FITS
            found.reasons[fits & np.isnan(found.judged)] = CODES["unjudged"]
            found.reasons[fits & (found.judged >= limit)] = CODES["judge"]


def distinct(
    found: Candidates, order: Sequence[int], most: int, keys: TextKeys | None
) -> list[int]:
    """Return the first ``most`` places of ``order`` whose texts are no positive's and differ.

    Equal texts on the way are noted as dropped.
    """
    if keys is None:
        return list(order[:most])
    positives = {keys[document] for document in found.known}
    seen: set[int] = set()
    chosen: list[int] = []
    for place in order:
        if len(chosen) == most:
            break
        key = keys[found.documents[place]]
        if key == EMPTY:
            found.reasons[place] = CODES["empty_text"]
        elif key is not None and key in positives:
            found.reasons[place] = CODES["positive_text"]
        elif key is not None and key in seen:
            found.reasons[place] = CODES["duplicate_text"]
        else:
            chosen.append(place)
            if key is not None:
                seen.add(key)
    return chosen


def preferred(found: Candidates, mining: Mining, seed: int) -> list[int]:
    """Return the places that fit in the order in which they are to be taken."""
    places = found.fitting
    if mining.sampling == "random":
        random.Random(f"{seed}:{found.query}").shuffle(places)
    elif mining.sampling == "cyclic":
        if found.judged_positives:
            places.sort(key=lambda place: -found.judged[place])
        places = [place for start in range(mining.step) for place in places[start :: mining.step]]
    return places
