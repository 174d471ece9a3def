"""Attention layers that papers compare with."""
