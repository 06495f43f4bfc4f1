"""How token vectors are stored: rounded, in segments of documents, mapped and spooled.

May import: `indexing.storage` and below.
"""
