"""Encoders and rerankers of single papers, one folder each, over the other rooms' contracts.

Nothing imports them but the tables of types, ``sluice.encoders`` and the losses that train them
alone: whoever reads dense, SPLADE or token encoders need not open them. May import: all rooms of
`encoders` but `objects`.
"""
