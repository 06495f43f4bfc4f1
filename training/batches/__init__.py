"""From examples to a batch and its scores: sampling, collating, masking, processes.

May import: `training.protocol`, `training.protocol`.
"""
