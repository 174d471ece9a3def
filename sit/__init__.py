"""SiT: continuous-time interpolant flow."""
