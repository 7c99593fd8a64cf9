"""Layers whose weights and activations are split over the ranks of a tensor axis, and the collectives beneath them."""
