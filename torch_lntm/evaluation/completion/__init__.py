"""Document completion, which scores held-out tokens given the rest of each document."""
