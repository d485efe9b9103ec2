"""A cluster in virtual time: the pipeline's policies, the predictor and the engine's own step."""
