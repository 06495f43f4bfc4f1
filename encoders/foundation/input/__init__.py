"""Reads what others wrote within bounds of time and memory, and tells when texts are the same.

May import: `encoders.foundation.errors`.
"""
