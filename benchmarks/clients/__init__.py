"""The clients that are compared: this checkout, a loop in C, SGLang's and vLLM's own."""
