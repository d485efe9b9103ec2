"""How right the prediction is on a real engine.

First its rules: the same requests through vLLM's scheduler and through the predictor's, step by
step (`steps`, `cases`, `vllm_steps`, `compare`).
"""
