"""Any server that speaks the OpenAI API with streaming: vLLM, SGLang, llama.cpp, TGI, others."""
