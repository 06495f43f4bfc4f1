"""The log that training writes as it runs, and curves drawn from it.

May import: `encoders.foundation`.
"""
