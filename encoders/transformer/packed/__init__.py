"""The same transformer without padding: a batch's texts laid end to end.

May import: torch, `encoders.model_files`, and nothing of `encoders.transformer` but its helpers.
"""
