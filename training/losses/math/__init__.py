"""What several losses compute: reductions, scales, pair sums, log-sum-exp in chunks.

May import: `training.protocol`, `encoders.foundation`.
"""
