"""What a number was computed with."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "torch", "torchvision", "diffusers", "accelerate", "huggingface_hub", "torch-fidelity",
    "numpy", "omegaconf", "safetensors", "pillow", "scikit-learn",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python, of this project and of the packages it computes with."""
    found = {
        "python": platform.python_version(),
        "visual-contrast-dit": _version("visual-contrast-dit"),
    }
    return found | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
