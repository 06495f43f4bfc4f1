"""Losses over one ranked list: ListNet, ListMLE, LambdaLoss, RankNet, ADORE.

May import: `training.losses.base`, `training.losses.math`, `training.batches`.
"""
