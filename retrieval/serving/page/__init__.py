"""The page at `/`: files that a browser gets as they are, without any other address.

May import: nothing.
"""
