"""How fast and how accurate the package is, beside itself and beside other programs."""
