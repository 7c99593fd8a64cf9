"""From text to token files: tokenizer, BPE training, and the `.bin/.idx` pair. Imports no torch."""
