"""The papers' tables and figures: each a function of its settings, and a module to run it with."""
