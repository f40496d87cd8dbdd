"""An engine that plays a written script, behind a real gateway: what agents' loops run against.

    scripts   the model's texts, turn by turn
    engine    plays them, token by token, over the engine's own protocol
    model     a tokenizer and a chat template with tools and thinking; no weights
    site      the gateway over it

The demo model is too small to follow the prompts of agents, so that their loops would end by chance. Here each loop
goes as its script says, and everything but the choice of tokens is the path of every request.
"""
