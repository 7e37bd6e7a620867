"""Messages: Anthropic's API, which vLLM, SGLang and llama.cpp serve too, next to those of OpenAI."""
