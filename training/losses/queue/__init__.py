"""Momentum contrast: a slow encoder and a queue of its vectors as further negatives.

May import: the other rooms of `training.losses`, `training.batches`.
"""
