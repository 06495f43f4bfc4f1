"""Reads a folder of program code: each function and class is a document, with its path and line.

May import: `encoders.foundation`, `retrieval.documents`, the modules of `readers` beside it.
"""
