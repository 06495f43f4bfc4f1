"""Immutable parts of an inverted index: how one is built, stored and read.

May import: `indexing.inverted.spooling` and below.
"""
