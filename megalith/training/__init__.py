"""Floor 4: the step, the loop around it and what a recipe is built into."""
