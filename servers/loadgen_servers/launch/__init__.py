"""The command that serves a model: vLLM's, SGLang's, transformers', a custom one, a container's."""
