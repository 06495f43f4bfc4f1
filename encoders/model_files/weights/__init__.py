"""Weights: their files, and those kept in 8 or 4 bits.

May import: `encoders.foundation`, `encoders.model_files.layout`.
"""
