"""One module per verb: ``python -m tools.NAME``."""
