"""What a user chooses: frozen dataclasses, read from YAML and checked before torch is imported."""
