"""A segment of the inverted index: documents by term and by block. Immutable, in memory or mapped.

Documents are numbered from 0 within the segment. They are stored twice, because the two engines
read them in different orders:

*By term*, the impacts themselves: the postings of a term, documents ascending, as a 16-bit offset
within a tile of 65,536 documents and the float32 impact, or in fidelity ``u8`` an 8-bit code whose
impact is ``code * scales[term]`` in float32. Pointers mark where each run of 4,096 documents
begins, so that tiles and single documents are found quickly.

*By block* of 1 to 256 documents, codes: a directory of the block's terms, hashed and sorted, and
for each term its postings as 16 bits, the offset within the block above the code. In fidelity
``exact`` a code is the impact rounded up to the ``code_bits`` left, an upper bound; in ``u8`` it is
the value.

Bounds are the largest impact of a term in each block, as 8 bits rounded up: a dense row for terms
in many blocks, else a list of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing.storage.rows import fact

TILE_BITS: Final = 16
TILE: Final = 1 << TILE_BITS
RUN_BITS: Final = 12  # documents of one pointer
RUNS_PER_TILE_BITS: Final = TILE_BITS - RUN_BITS
GROUP: Final = 16  # blocks whose bounds share one maximum
WINDOW: Final = 16  # directory entries compared at once; every block's are followed by as many
MOST_BLOCKS: Final = 1 << 16  # of a segment: block numbers are 16 bits
MOST_BLOCK_POSTINGS: Final = (1 << 16) - 1  # starts within a block are 16 bits
FLOOR_RANKS: Final = (10, 100, 1000)
LAST_ROW: Final = (1 << 31) - 1  # row numbers share an int64 with the score's bits
HASH: Final = 40503  # odd: multiplying 16 bits by it is a permutation that spreads neighbours
UNHASH: Final = pow(HASH, -1, 1 << 16)


class Segment(NamedTuple):
    """The arrays of a segment, all read-only; P postings, T terms, N documents, b blocks.

    numba compiles one kernel for arrays in memory and for mapped ones, because both are read-only.
    """

    # By term.
    first_run: NDArray[np.int64]  # [T + 1] a term's runs in the two arrays below
    run_numbers: NDArray[np.uint16]  # [runs] document // 4096
    run_starts: NDArray[np.uint32]  # [runs + 1] first posting
    offsets: NDArray[np.uint16]  # [P] document % 65536
    impacts: NDArray[np.float32]  # [P] in fidelity exact, else empty
    impact_codes: NDArray[np.uint8]  # [P] in fidelity u8, else empty
    scales: NDArray[np.float32]  # [T] impact of an impact code of 1
    # By block.
    directory_starts: NDArray[np.int64]  # [b + 1] entries, without the padding
    directory: NDArray[np.uint32]  # [entries + 16 b] hashed term above the place of its postings
    directory_tags: NDArray[np.uint16]  # the same: the term's upper bits; empty if T <= 65,536
    buckets: NDArray[np.uint16]  # [b, buckets + 1] first entry by the upper bits of the hash
    block_starts: NDArray[np.int64]  # [b + 1] first posting of a block
    codes: NDArray[np.uint16]  # [P] offset within the block << code_bits | code
    code_scales: NDArray[np.float32]  # [T] impact of a code in the blocks
    # Bounds.
    bound_scales: NDArray[np.float32]  # [T] impact of a bound's code
    dense_rows: NDArray[np.int32]  # [T] row of the dense bounds, -1 for a list
    dense: NDArray[np.uint8]  # [rows, b rounded up to groups]
    list_starts: NDArray[np.int64]  # [T + 1]
    list_blocks: NDArray[np.uint16]  # [listed]
    list_bounds: NDArray[np.uint8]  # [listed]
    floors: NDArray[np.float32]  # [3, T] at most the 10th, 100th, 1000th largest impact, or 0
    # Order.
    order: NDArray[np.uint32]  # [N] row, from the segment's first, of each document; or empty
    shape: NDArray[np.int64]  # documents, log2 of the block size, code_bits, log2 of the buckets

    @property
    def documents(self) -> int:
        """Number of documents."""
        return int(self.shape[0])

    @property
    def terms(self) -> int:
        """Width of the vocabulary, terms without postings included."""
        return len(self.first_run) - 1

    @property
    def postings(self) -> int:
        """Number of postings."""
        return len(self.offsets)

    @property
    def blocks(self) -> int:
        """Number of blocks; none when the documents are too long for a block's 16-bit places."""
        return len(self.directory_starts) - 1

    @property
    def block_size(self) -> int:
        """Documents of a block."""
        return 1 << int(self.shape[1])

    @property
    def frequencies(self) -> NDArray[np.int64]:
        """Documents of each term, int64 ``[T]``."""
        firsts = self.run_starts[self.first_run].astype(np.int64)
        return firsts[1:] - firsts[:-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self)


LAYOUT: Final[Mapping[str, tuple[type[np.generic], int]]] = {  # dtype and dimensions
    "first_run": (np.int64, 1),
    "run_numbers": (np.uint16, 1),
    "run_starts": (np.uint32, 1),
    "offsets": (np.uint16, 1),
    "impacts": (np.float32, 1),
    "impact_codes": (np.uint8, 1),
    "scales": (np.float32, 1),
    "directory_starts": (np.int64, 1),
    "directory": (np.uint32, 1),
    "directory_tags": (np.uint16, 1),
    "buckets": (np.uint16, 2),
    "block_starts": (np.int64, 1),
    "codes": (np.uint16, 1),
    "code_scales": (np.float32, 1),
    "bound_scales": (np.float32, 1),
    "dense_rows": (np.int32, 1),
    "dense": (np.uint8, 2),
    "list_starts": (np.int64, 1),
    "list_blocks": (np.uint16, 1),
    "list_bounds": (np.uint8, 1),
    "floors": (np.float32, 2),
    "order": (np.uint32, 1),
    "shape": (np.int64, 1),
}


def open_segment(folder: Path, prefix: str, facts: Mapping[str, Any], exact: bool) -> Segment:
    """Open the segment whose files begin with ``prefix``, mapped into memory.

    ``facts`` are its counts from the manifest. ``IndexFormatError`` for arrays that do not fit them
    or each other; kernels trust the shapes.
    """
    if not isinstance(facts, Mapping):
        raise IndexFormatError(f"{folder}: counts of a segment are {facts!r}; rebuild the index")
    count = {
        name: fact(facts, name, int, folder)
        for name in ("documents", "terms", "postings", "blocks")
    }
    arrays = {}
    for name, (dtype, dimensions) in LAYOUT.items():
        arrays[name] = open_array(folder / f"{prefix}{name}.npy", dtype, (None,) * dimensions)
    segment = Segment(**arrays)
    damage = _damage(segment, count, exact)
    if damage:
        raise IndexFormatError(f"{folder / prefix}*: {damage}; rebuild the index")
    return segment


def _damage(segment: Segment, count: Mapping[str, int], exact: bool) -> str:
    """Return what is wrong with the arrays' sizes and ends, or an empty text."""
    terms, blocks, postings = count["terms"], count["blocks"], count["postings"]
    if segment.shape.shape != (4,) or segment.documents != count["documents"]:
        return "the shape does not fit the manifest"
    shift, code_bits, bucket_bits = (int(number) for number in segment.shape[1:])
    if not (0 <= shift <= 8 and 0 < code_bits <= 16 - shift and 0 <= bucket_bits <= 16):
        return "impossible block size"
    needed = -(-segment.documents >> shift)
    if (blocks != needed and (blocks or postings)) or blocks > MOST_BLOCKS:
        blocks = blocks if blocks == 0 else -1
    padded = -(-max(blocks, 0) // GROUP) * GROUP
    rows = segment.dense.shape[0]
    entries = int(segment.directory_starts[-1]) if len(segment.directory_starts) else -1
    runs, listed = len(segment.run_numbers), len(segment.list_blocks)
    by_block = postings if blocks else 0
    shapes: dict[str, tuple[int, ...]] = {
        "first_run": (terms + 1,),
        "run_starts": (runs + 1,),
        "offsets": (postings,),
        "impacts": (postings if exact else 0,),
        "impact_codes": (0 if exact else postings,),
        "scales": (terms,),
        "directory_starts": (blocks + 1,),
        "directory": (entries + WINDOW * max(blocks, 0),),
        "buckets": (blocks, (1 << bucket_bits) + 1),
        "block_starts": (blocks + 1,),
        "codes": (by_block,),
        "code_scales": (terms,),
        "bound_scales": (terms,),
        "dense_rows": (terms,),
        "dense": (rows, padded),
        "list_starts": (terms + 1,),
        "list_bounds": (listed,),
        "floors": (len(FLOOR_RANKS), terms),
    }
    for name, shape in shapes.items():
        if getattr(segment, name).shape != shape:
            return f"{name} has the shape {getattr(segment, name).shape}, expected {shape}"
    if len(segment.directory_tags) not in (0, len(segment.directory)) or (
        terms > 1 << 16 and blocks > 0 and not len(segment.directory_tags)
    ):
        return "directory_tags does not fit the directory"
    if len(segment.order) not in (0, segment.documents) or (
        segment.order.max(initial=0) >= max(segment.documents, 1)
    ):
        return "order does not fit the documents"
    ends = {
        "first_run": runs,
        "run_starts": postings,
        "directory_starts": entries,
        "block_starts": by_block,
        "list_starts": listed,
    }
    for name, end in ends.items():
        array = getattr(segment, name)
        if int(array[0]) != 0 or int(array[-1]) != end:
            return f"{name} has damaged ends"
        # run_starts is as long as the index is large: only verify reads all of it.
        if name != "run_starts" and (np.diff(array) < 0).any():
            return f"{name} descends"
    if terms and not -1 <= int(segment.dense_rows.min()) <= int(segment.dense_rows.max()) < rows:
        return "dense_rows points outside the dense bounds"
    return ""
