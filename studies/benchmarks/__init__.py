"""Speed and accuracy of the package, against its own alternatives and against other programs."""
