"""Writes to disk so that a kill or a power cut leaves the old or the new; CSV; and reads it back.

May import: `encoders.foundation` beside it.
"""
