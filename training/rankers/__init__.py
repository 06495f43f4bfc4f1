"""Learning to rank over features: LambdaMART, a linear ranker, a head of passage quality.

May import: `encoders.foundation`.
"""
