"""DiT: discrete-time Gaussian diffusion (DDPM)."""
