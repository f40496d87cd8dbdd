"""The engine's speed on a GPU with a model of random weights.

To be run as `python -m engine.bench --shape llama-3.1-8b --random-weights`. No downloads, no tokenizer, no sockets;
`--dry` runs all of it on a CPU and claims no figures.

command     arguments, checks first, then the table
sizes       shapes of models, and how large each scenario is
weights     random weights and adapters
rig         a device with random weights and adapters, and steps of hand-made plans
checks      the rig's logits against the definition in fp32; if one is red, there are no figures
steps       decode, mixed and prefill steps beside their floors
whole       the engine's loop around the rig
registered  many more adapters than slots, through the whole core
loads       what loads cost the streams that run beside them
floors      the least that a step can take
"""
