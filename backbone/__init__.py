"""The transformer that DiT and SiT share."""
