"""From token files to the micro-batches of a training step."""
