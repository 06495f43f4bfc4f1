"""Losses over labels and in-batch documents: InfoNCE and its kin.

May import: `training.losses.base`, `training.losses.math`, `training.batches`.
"""
