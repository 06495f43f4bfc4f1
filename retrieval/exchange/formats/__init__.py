"""Files of vectors in other tools' formats, one module for those that are read alike.

May import: `retrieval.documents` and below. `vector_files.FORMATS` is the table of all.
"""
