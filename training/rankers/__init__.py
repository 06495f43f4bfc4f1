"""Learning to rank over features, and heads over vectors: of passage quality, of errors (RRRA).

May import: `encoders.foundation`, `encoders.dense`.
"""
