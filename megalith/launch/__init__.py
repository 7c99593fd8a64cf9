"""Floor 5: start the processes of a run."""
