"""Losses of single papers, one file each, over the other rooms' contracts.

Nothing imports them but the table of losses: whoever reads softmax, pairs, lists or distillation
need not open them. May import: all rooms of `training.losses`, `training.batches` and below.
"""
