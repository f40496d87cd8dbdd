"""A model folder without weights: the demo's tokenizer, a context that holds agents' prompts, and a chat template
that knows tools and thinking."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

CONTEXT = 131_072
TURN, END_OF_TURN = "<|im_start|>assistant\n", "<|im_end|>"

CHAT_TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Functions that you can call:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one with <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>.<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' or not loop.first or not tools -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}
{%- endif -%}
"""


def make_model_folder(folder: Path, demo: Path) -> Path:
    """Make the folder of a model; return the folder.

    demo: the folder of the demo's model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(demo / name, folder / name)
    config = json.loads((demo / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
