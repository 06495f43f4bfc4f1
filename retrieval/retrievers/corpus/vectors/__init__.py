"""The vectors of a corpus: encoded here or as tasks of an executor, and filled into shards.

May import: `encoding` and `reading` of this package, `execution`, `indexing` and below.
"""
