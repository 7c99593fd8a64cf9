"""A decoder-only language model on one device; nothing here knows of other processes."""
