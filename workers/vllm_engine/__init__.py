"""vLLM in the worker's own process. Imports vLLM only where an engine is made."""
