"""Fetches published checkpoints by pip, and makes models' folders of what they are packed in.

May import: what `encoders.model_files` may.
"""
