"""Floor 1: saved state on disk that survives a kill at any instant and any change of layout."""
