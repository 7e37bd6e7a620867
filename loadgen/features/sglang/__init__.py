"""SGLang: its own API, of token ids and running counts, next to those of OpenAI."""
