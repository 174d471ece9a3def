"""Visual-Contrast Attention."""
