"""Chat templates of the kinds that models come with, shortened to the parts about tools."""

from __future__ import annotations

QWEN = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}# Tools\n<tools>"
    "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}\n</tools>\n\nFor each call:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}"
    "{% if message.role == 'assistant' and message.tool_calls %}<|im_start|>assistant"
    "{% if message.content %}{{ '\n' + message.content }}{% endif %}"
    "{% for call in message.tool_calls %}{% set call = call.function %}"
    """{{ '\\n<tool_call>\\n{"name": "' }}{{ call.name }}", "arguments": {{ call.arguments | tojson }}}\n</tool_call>"""
    "{% endfor %}<|im_end|>\n"
    "{% elif message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "<|im_end|>\n"
    "{% elif message.role != 'system' %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA = (
    "{% if tools %}Functions:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.\n'
    "{% endif %}"
    "{% for message in messages %}{% if 'tool_calls' in message %}"
    "{% if message.tool_calls | length != 1 %}{{ raise_exception('This model calls one tool at a time!') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}"
    '[assistant]{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}\n'
    "{% elif message.role == 'tool' %}[ipython]{{ message.content }}\n"
    "{% else %}[{{ message.role }}]{{ message.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}{% if message.tool_calls %}[TOOL_CALLS] ["
    "{% for call in message.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids must have 9 characters') }}{% endif %}"
    '{{ (call.function | tojson)[:-1] + \', "id": "\' + call.id + \'"}\' }}{{ ", " if not loop.last }}{% endfor %}]'
    "{% elif message.role == 'tool' %}"
    '[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}[INST] {{ message.content }}[/INST]{% endif %}{% endfor %}"
)

PLAIN = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
