"""Momentum contrast: a slow encoder and a queue of its vectors as further negatives.

May import: `training.losses.base`, `training.losses.math`, `training.batches`.
"""
