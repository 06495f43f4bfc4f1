"""Converts pickled weights to safetensors where a reader asks for it, in a process of its own.

May import: what `encoders.model_files` may.
"""
