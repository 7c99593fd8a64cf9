"""The plan is the program: a layer run on fake tensors, and what it costs read off."""
