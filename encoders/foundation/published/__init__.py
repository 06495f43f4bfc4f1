"""The table of checkpoints that others published in ordinary packages.

May import: `encoders.foundation`.
"""
