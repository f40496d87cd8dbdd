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

# Written anew after the chat templates that IBM's Granite 3.3, Hugging Face's SmolLM3 and Qwen3 are published with, all
# under Apache-2.0: special tokens, variables, roles and their order are those, and words are fewer.

GRANITE_3 = (
    "{% if tools and not available_tools %}{% set available_tools = tools %}{% endif %}"
    "<|start_of_role|>system<|end_of_role|>Call with <|tool_call|> and a JSON list.<|end_of_text|>\n"
    "{% if available_tools %}<|start_of_role|>available_tools<|end_of_role|>{{ available_tools | tojson(indent=4) }}"
    "<|end_of_text|>\n{% endif %}"
    "{% for message in messages %}"
    "<|start_of_role|>{{ message['role'] }}<|end_of_role|>{{ message['content'] }}<|end_of_text|>\n"
    "{% if loop.last and add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}{% endfor %}"
)

SMOLLM_3 = (
    "<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "{% if xml_tools or python_tools %}### Tools\n\n{% if xml_tools %}<tools>\n"
    "{% for tool in xml_tools[:] %}{{ tool | string }}\n{% endfor %}</tools>\n\nFor each function call:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}\n\n{% endif %}<|im_end|>\n'
    "{% for message in messages %}{% set content = message.content if message.content is string else '' %}"
    "{% if message.role == 'user' %}<|im_start|>user\n{{ content }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}<|im_start|>assistant\n{{ content.lstrip('\n') }}<|im_end|>\n"
    "{% elif message.role == 'tool' %}<|im_start|>user\n{{ content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n{% endif %}{% endif %}"
)

QWEN_3 = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "</tools>\nFor each call:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}{% if message.role == 'user' %}<|im_start|>user\n{{ message.content }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{% set call = call.function %}"
    """{{ '\n<tool_call>\n{"name": "' }}{{ call.name }}", "arguments": {{ call.arguments | tojson }}}\n</tool_call>"""
    "{% endfor %}<|im_end|>\n"
    "{% elif message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

# Written anew after the chat template that Qwen 3.5 and 3.6 are published with, under Apache 2.0: roles, marks and
# variables are its own, and words are fewer.

QWEN_3_5 = (
    "{% if tools %}<|im_start|>system\n# Tools\n\n<tools>{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}"
    "{{ '\n</tools>\n\nTo call one:\n<tool_call>\n<function=NAME>\n<parameter=FIRST>\nvalue\n</parameter>\n' }}"
    "</function>\n</tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}<|im_start|>user\n{{ message.content }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content | trim }}\n</think>\n\n{% endif %}"
    "{{ message.content }}{% for tool_call in message.tool_calls or [] %}{% set tool_call = tool_call.function %}"
    "{% if not loop.first %}{{ '\n' }}{% elif message.content | trim %}{{ '\n\n' }}{% endif %}"
    "{{ '<tool_call>\n<function=' + tool_call.name + '>\n' }}"
    "{% for args_name, args_value in tool_call.arguments | items %}{{ '<parameter=' + args_name + '>\n' }}"
    "{{ args_value if args_value is string else args_value | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}{% endfor %}<|im_end|>\n"
    "{% elif message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Written anew after the chat template that GLM-4 0414 is published with, under MIT: roles and variables are its own,
# and words are fewer.

GLM_4 = (
    "[gMASK]<sop>{% if tools %}<|system|>\n# Tools\n{% for tool in tools %}{% set function = tool.function %}"
    "{{ '\\n## ' + function.name }}\n\n{{ function | tojson(indent=4) }}\n{% endfor %}{% endif %}"
    "{% for message in messages if message.role == 'system' %}<|system|>\n{{ message.content }}{% endfor %}"
    "{% for message in messages if message.role != 'system' %}{% set meta = message.get('metadata', '') %}"
    "{% if message.role == 'user' %}<|user|>\n{{ message.content }}"
    "{% elif message.role == 'assistant' %}<|assistant|>{{ meta }}\n{{ message.content }}"
    "{% elif message.role == 'observation' %}<|observation|>\n{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Written anew after the chat template that Ministral 3 Instruct is published with, under Apache-2.0.

MINISTRAL_3 = (
    "{% if messages[0].role == 'system' %}[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' %}[INST]{{ message.content }}[/INST]"
    "{% elif message.role == 'assistant' %}{{ message.content }}{% for call in message.tool_calls or [] %}"
    "{% set arguments = call.function.arguments %}"
    "{% if arguments is not string %}{% set arguments = arguments | tojson %}{% endif %}"
    "{{ '[TOOL_CALLS]' + call.function.name + '[ARGS]' + arguments }}{% endfor %}</s>"
    "{% elif message.role == 'tool' %}[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
)

# Written anew after the chat template that gpt-oss is published with, under Apache-2.0, and OpenAI's description of its
# format: special tokens, roles, channels and refusals are those, and words are fewer.

GPT_OSS = (
    "{% if messages[0].role in ('developer', 'system') %}{% set first = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% if first or tools %}<|start|>developer<|message|>{{ first }}"
    "{% for tool in tools or [] %} {{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% set ns = namespace(called=none) %}"
    "{% for message in messages %}{% if message.role == 'assistant' and message.tool_calls %}"
    "{% if message.content and message.thinking %}{{ raise_exception('content or thinking, not both') }}{% endif %}"
    "{% set later = namespace(is_answered=false) %}{% for other in messages[loop.index:] %}"
    "{% if other.role == 'assistant' and not other.tool_calls %}{% set later.is_answered = true %}{% endif %}"
    "{% endfor %}"
    "{% set thought = message.content or message.thinking %}"
    "{% if thought and not later.is_answered %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' }}{% endif %}"
    "{% set function = message.tool_calls[0].function %}{% set ns.called = function.name %}"
    "{{ '<|start|>assistant to=' }}{{ 'functions.' + function.name + '<|channel|>commentary json<|message|>' }}"
    "{{ function.arguments | tojson }}<|call|>"
    "{% elif message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>"
    "{% elif message.role == 'tool' %}"
    "{% if ns.called is none %}{{ raise_exception('a result without a call') }}{% endif %}"
    "{{ '<|start|>functions.' + ns.called }}"
    "{{ ' to=assistant<|channel|>commentary<|message|>' + (message.content | tojson) + '<|end|>' }}"
    "{% elif message.role == 'user' %}<|start|>user<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
