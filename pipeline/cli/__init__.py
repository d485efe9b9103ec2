"""The `astrolabe` command. The only place that imports every package, and each only when used."""

from pipeline.cli.app import main

__all__ = ["main"]
