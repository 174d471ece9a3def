"""What a generative process is: its denoiser, its loss and its sampler."""
