"""Scores of finished work: how good a prediction is, and what simple models reach on the same text."""
