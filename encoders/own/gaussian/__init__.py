"""A mean and a variance of every text (Gaussian representation), as one vector for inner products.

May import: `encoders.transformer` and below, and of `encoders.dense` the poolings.
"""
