"""Exact top k over segments: bounds, block-max pruning, term at a time, and the planner between.

May import: `indexing.inverted.segments` and below.
"""
