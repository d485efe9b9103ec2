"""SGLang behind its own HTTP API, and the plug-in that its scheduler reports with."""
