"""Samplers and integrals of documents' latent variables, in any latent space."""
