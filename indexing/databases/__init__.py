"""Indexes whose vectors lie in a database that people run already, behind one interface.

May import: `encoders.foundation`, and below it in `indexing` the index, its rows and its checks.
"""
