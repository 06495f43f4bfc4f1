"""Vectors on disk: the cache by encoder and text, and the processes that fill it.

May import: `encoders.model_files` and below.
"""
