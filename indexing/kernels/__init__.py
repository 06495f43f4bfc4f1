"""numba kernels and threads that several indexes use: exact scores, heaps, summation, prefetching.

May import: `indexing.hits`, `encoders.foundation`.
"""
