"""Metrics of the scheduler: what each is, how it is derived from durable facts and the state, and the
Prometheus text format.
"""
