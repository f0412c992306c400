"""Optimisers and searches that the methods share."""
