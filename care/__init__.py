"""CARE: asymmetric channel split, linear attention, dual interaction."""
