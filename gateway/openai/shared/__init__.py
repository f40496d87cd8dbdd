"""Code that several endpoints of OpenAI's API share: options, grammars, log-probabilities, pages, replies, usage."""
