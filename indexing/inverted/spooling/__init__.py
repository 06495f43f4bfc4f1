"""Gathers documents before a segment is built: spool, order, clustering, heaviest terms.

May import: `indexing.storage` and below.
"""
