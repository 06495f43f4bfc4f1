"""Losses that follow a teacher's scores.

May import: `training.losses.base`, `training.losses.math`, `training.batches`.
"""
