"""A measure of your own: success at the cut-off, and half as much again for a relevant first hit.

In YAML: ``measures: ["own_measure:bonus@10"]``; on the command line ``-m own_measure:bonus@10``
(the folder is on PYTHONPATH).
"""

import sys

import numpy as np

from sluice import Run, evaluate


def bonus(judgements, cutoff, level):
    """Return one finite number for each query, the higher the better.

    ``judgements`` has flat arrays over all queries; those of hits are cut off already. ``level`` is
    the least grade that counts as relevant, ``cutoff`` None without ``@``.
    """
    relevant = judgements.hit_grade >= level
    values = np.zeros(len(judgements.retrieved))
    values[judgements.hit_query[relevant]] = 1.0
    values[judgements.hit_query[relevant & (judgements.hit_rank == 0)]] = 1.5
    return values


qrels = {"first": {"d1": 1}, "second": {"d1": 1}, "nowhere": {"d9": 1}}
run = Run(
    {
        "first": {"d1": 3.0, "d2": 2.0},
        "second": {"d2": 3.0, "d1": 2.0},
        "nowhere": {"d1": 1.0},
    }
)
sys.modules["own_measure"] = sys.modules[__name__]  # it is found by name, as when it is installed
scores = evaluate(run, qrels, ["own_measure:bonus@10", "own_measure:bonus@1"])
assert scores.mean["own_measure:bonus@10"] == 2.5 / 3
assert scores.mean["own_measure:bonus@1"] == 0.5
