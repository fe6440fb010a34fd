"""Topics of a model, distributions over words, one file a kind."""
