"""Floor 4: from a model in memory to text."""
