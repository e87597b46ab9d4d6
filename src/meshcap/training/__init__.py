"""Training: cross-entropy and self-critical tasks, the trainer, checkpoints, many processes."""
