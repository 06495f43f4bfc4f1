"""Encoders around what a program gives: functions, and models of sentence-transformers.

May import: what `encoders.dense` may.
"""
