"""The same transformer without padding: a batch's texts laid end to end.

May import: torch, and nothing of `encoders.transformer` but its helpers.
"""
