"""Which parameters learn: LoRA, adapters, prefixes, biases, frozen layers, and averages of models.

May import: `encoders.model_files` and below.
"""
