"""Losses around other losses: sums, Matryoshka, mixing, DSE, CLP, QBD, three heads, CSR.

May import: the other rooms of `training.losses`, `training.batches`, `encoders`.
"""
