"""Reads files of text, Markdown, HTML and PDF, alone or by the folder, as one document each.

May import: `encoders.foundation`, `retrieval.documents`, the modules of `readers` beside it.
"""
