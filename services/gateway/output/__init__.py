"""From output tokens to text, reasoning and tool calls: a pure function of the token sequence."""
