"""Document completion: scores of held-out tokens, given the other tokens of each document."""
