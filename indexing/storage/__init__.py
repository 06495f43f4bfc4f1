"""Dense rows on disk and in memory: chunks, arrays, spools, exact scores over them.

May import: `indexing.kernels`, `indexing.checks`, `indexing.hits`, `indexing.hits`.
"""
