"""Reads what somebody else wrote within bounds of time and memory: files, YAML, samples of streams.

May import: `encoders.foundation.errors`.
"""
