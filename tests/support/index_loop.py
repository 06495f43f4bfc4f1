"""Add to, delete from, compact and save an inverted index until somebody kills this process."""

import itertools
import sys
from pathlib import Path

import numpy as np
from scipy import sparse

from sluice.indexing import InvertedIndex

path = Path(sys.argv[1])
index, weight = InvertedIndex(n_terms=20), 1.0
for turn in itertools.count():
    table = np.zeros((30, 20), dtype=np.float32)
    table[:, 0] = np.arange(weight, weight + 30)
    weight += 30
    rows = index.add(sparse.csr_array(table))
    index.save(path)
    if turn == 0:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    index.delete(rows[::3])
    index.save(path)
    if turn % 3 == 2:
        index.compact()
        index.save(path)
    if weight > 5000:
        index, weight = InvertedIndex(n_terms=20), 1.0
