"""Penalties on active terms (FLOPS, L1) and their control towards a target.

May import: `training.protocol`, `training.protocol`, `encoders`.
"""
