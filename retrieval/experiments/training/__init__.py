"""The `train:` section and `sluice train`: checks, the job, dev evaluation.

May import: `retrieval.training_data` and below.
"""
