"""Certified solving of linear systems, with or without a model."""
