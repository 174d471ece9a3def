"""Which timesteps of the training chain a sampler visits.

Source: Nichol and Dhariwal 2021, whose spec strings "250", "10,15,20" and "ddim50" are our
``even`` with 250 steps, ``10,15,20`` with 45 steps and ``ddim`` with 50 steps.
"""

from itertools import accumulate, pairwise

SPACINGS = "even, ddim, or the number of steps in each of equal sections, such as 10,15,20"


def kept_timesteps(num_timesteps: int, num_sampling_steps: int, spacing: str = "even") -> list[int]:
    """The timesteps visited, in ascending order.

    ``even`` runs from the last timestep to 0 in equal steps, rounded; a single step is timestep 0.
    ``ddim`` takes every i-th timestep from 0 on, with the smallest i that gives the number asked
    for; it misses the last timesteps. ``10,15,20`` divides the chain into three equal
    sections and spaces that many steps evenly in each.

    Raises a ValueError for more steps than there are timesteps, or for a spacing that cannot give
    the number asked for.
    """
    if not 1 <= num_sampling_steps <= num_timesteps:
        raise ValueError(
            f"num_sampling_steps = {num_sampling_steps} is not between 1 and the "
            f"{num_timesteps} timesteps of the chain"
        )
    if spacing == "ddim":
        return _every_ith(num_timesteps, num_sampling_steps)
    return _evenly_in_sections(num_timesteps, section_steps(spacing, num_sampling_steps), spacing)


def section_steps(spacing: str, num_sampling_steps: int) -> list[int]:
    """Number of steps in each section of the chain; ``even`` and ``ddim`` have one section."""
    if spacing in ("even", "ddim"):
        return [num_sampling_steps]
    try:
        steps = [int(number) for number in spacing.split(",")]
    except ValueError:
        steps = []
    if not steps or min(steps) < 1:
        raise ValueError(f"unknown spacing {spacing!r}; there are: {SPACINGS}")
    if sum(steps) != num_sampling_steps:
        raise ValueError(
            f"spacing {spacing!r} makes {sum(steps)} steps, but num_sampling_steps = "
            f"{num_sampling_steps}"
        )
    return steps


def _every_ith(num_timesteps: int, num_sampling_steps: int) -> list[int]:
    for i in range(1, num_timesteps + 1):
        timesteps = range(0, num_timesteps, i)
        if len(timesteps) == num_sampling_steps:
            return list(timesteps)
    raise ValueError(
        f"spacing 'ddim' cannot make {num_sampling_steps} steps of {num_timesteps} timesteps: "
        "no whole stride gives that many"
    )


def _evenly_in_sections(num_timesteps: int, steps: list[int], spacing: str) -> list[int]:
    size, num_longer = divmod(num_timesteps, len(steps))
    sizes = [size + 1] * num_longer + [size] * (len(steps) - num_longer)
    kept = []
    for (start, end), count in zip(pairwise(accumulate(sizes, initial=0)), steps, strict=True):
        if count > end - start:
            raise ValueError(
                f"spacing {spacing!r} asks for {count} steps in a section of "
                f"{end - start} timesteps"
            )
        stride = (end - start - 1) / (count - 1) if count > 1 else 1.0
        # A running sum rather than i * stride: the published lists contain its round-off.
        positions = accumulate([stride] * (count - 1), initial=0.0)
        kept += [start + round(position) for position in positions]
    return kept
