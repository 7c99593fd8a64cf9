"""Megalith: train, plan, adapt, evaluate and serve large language models."""

__version__ = "0.1.0"
