"""Floor 3: from a folder on disk to a model in memory."""
