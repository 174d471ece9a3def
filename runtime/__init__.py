"""Everything that touches disk, devices or other processes."""
