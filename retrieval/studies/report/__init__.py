"""`report.html`: the data of the page, and the page.

May import: `retrieval.experiments` and below.
"""
