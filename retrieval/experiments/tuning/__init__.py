"""`sluice tune` and `sluice fit`: depths, weights and rankers chosen on dev queries.

May import: `retrieval.experiments` and below.
"""
