"""Token sequences: the FM-index of their n-grams, and the trie of whole ones, identifiers.

May import: `indexing.index`, `indexing.folder` and below.
"""
