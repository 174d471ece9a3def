"""Named sizes: the published ones, and two for demonstrations and tests on a CPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    depth: int
    dim: int
    num_heads: int


SIZES = {
    "XXS": Size(depth=2, dim=64, num_heads=2),
    "XS": Size(depth=4, dim=128, num_heads=4),
    "S": Size(depth=12, dim=384, num_heads=6),
    "B": Size(depth=12, dim=768, num_heads=12),
    "L": Size(depth=24, dim=1024, num_heads=16),
    "XL": Size(depth=28, dim=1152, num_heads=16),
}
