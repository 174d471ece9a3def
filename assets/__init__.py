"""The bundled demo models, with the scripts that made them."""
