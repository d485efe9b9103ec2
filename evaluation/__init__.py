"""The simulated world: what arrives in it, how it runs, what is measured there."""
