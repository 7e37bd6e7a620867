"""APIs: Anthropic's messages, OpenAI's responses and SGLang's own, next to completions and chats."""
