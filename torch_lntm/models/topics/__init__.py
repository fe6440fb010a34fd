"""Topics of a model (distributions over words), in one file for each kind."""
