"""Losses and, later, the trainer: what joins a model with what it should say."""
