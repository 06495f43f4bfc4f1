"""Indexes of single papers, one file or folder each, over the other rooms' contracts.

Nothing imports them but the table of types, ``sluice.indexing`` and ``auto``, which tries one of
them: whoever reads exact, sparse or token search need not open them. May import: all rooms of
`indexing` but `auto`.
"""
