"""Chat templates against transformers' apply_chat_template.

The templates are written for these tests, in the ways of the families they are named after; none is a copy.
"""

import datetime
import json

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

import graft

CHATML = """
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN3 = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer with {\\"name\\": <name>, \\"arguments\\": <json>}<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- This block extracts the system message. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\nToday Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- set content = message.content.content if message.content is mapping and message.content.content is defined else message.content %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of a system message!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

COMMAND_R = """{{ bos_token }}
{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "List[" + json_to_python_type(json_spec["items"]) + "]"}}
{%- elif json_spec.type is iterable and json_spec.type is not string %}
    {{- "Union[" }}{% for t in json_spec.type %}{{- json_to_python_type({"type": t}) }}{% if not loop.last %}{{- ","}}{% endif %}{% endfor %}{{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{%- if messages[0]['role']=='system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = '## Task and Context\\nYou help people.' %}{% endif %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message }}
{%- for tool in tools or [] %}
{{'\\n```python\\ndef ' + tool.function.name + '('}}
{%- for name, fields in (tool.function.parameters.properties|default({})).items() %}
{{- (', ' if not loop.first) ~ name ~ ': ' ~ json_to_python_type(fields) }}
{%- endfor %}
{{- ') -> List[Dict]:\\n    \"\"\"' ~ tool.function.description ~ '\"\"\"\\n```' }}
{%- endfor %}
{%- for document in documents or [] %}
{{ '\\nDocument: ' ~ loop.index0 ~ '\\n' -}}
{% for key, value in document|dictsort %}{{ key|title ~ ': ' ~ value ~ '\\n' }}{% endfor %}
{%- endfor %}
{{- '<|END_OF_TURN_TOKEN|>'}}
{%- for message in loop_messages %}
{%- set content = message['content'] %}
{%- if message.role|lower == 'user' %}
{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message.role == 'assistant' and message.tool_calls|default(false) %}
{{- '<|CHATBOT_TOKEN|>Action: ```json\\n[\\n' }}
{%- for call in message.tool_calls %}
{{- {'tool_name': call.function.name, 'parameters': call.function.arguments}|tojson(indent=2)|indent(4, true) }}{{ ',' if not loop.last }}
{%- endfor %}
{{- '\\n]```' }}
{%- elif message.role == 'assistant' %}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- else %}
{{- '<results>\\n' ~ content ~ '</results>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}
"""

SMOLLM3 = """
{#- ───── defaults ───── -#}
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- set reasoning_mode = "/think" if enable_thinking else "/no_think" -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|im_start|>system\\n## Metadata\\n\\nReasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}
  {{- "## Custom Instructions\\n\\n" + custom_instructions + "\\n\\n" -}}
{%- endif -%}
{%- if xml_tools or tools -%}
  {%- set ns = namespace(text="<tools>\\n") -%}
  {%- for tool in tools -%}{%- set ns.text = ns.text ~ (tool | string) ~ "\\n" -%}{%- endfor -%}
  {{- ns.text + "</tools>\\n" -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if reasoning_mode == "/think" -%}
        {{ "<|im_start|>assistant\\n" }}
    {%- else -%}
        {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n"  }}
    {%- endif -%}
{%- endif -%}
"""

DEEPSEEK = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}"
    "{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}"
    "{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}"
    "{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' "
    "+ '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- set ns.is_first = true -%}"
    "{%- else %}{{'\\n' + '<｜tool▁call▁begin｜>' + tool['type']}}{%- endif %}{%- endfor %}{%- endif %}"
    "{%- if message['role'] == 'assistant' and not message['tool_calls'] %}{%- if ns.is_tool %}"
    "{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}"
    "{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}"
    "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}"
    "{{'<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}"
    "{%- set ns.is_output_first = false %}{%- else %}{{'\\n<｜tool▁output▁begin｜>' + message['content']}}{%- endif %}{%- endif %}"
    "{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}"
)

TEMPLATES = {
    "chatml": CHATML, "qwen3": QWEN3, "llama-2": LLAMA2, "llama-3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA,
    "phi-3": PHI3, "zephyr": ZEPHYR, "command-r": COMMAND_R, "smollm3": SMOLLM3, "deepseek": DEEPSEEK,
}  # fmt: skip

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather at a "place" <now> & here',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "a city\nor town"},
                "unit": {"type": "string", "enum": ["°C", "°F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
                "what": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "id": "abc123XYZ",
            "function": {
                "name": "get_weather",
                "arguments": {"city": "Zürich", "n": 3, "f": 1.5, "b": True, "x": None},
            },
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "abc123XYZ", "name": "get_weather", "content": '{"t": 20.5}'}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = [
    {"messages": [said("user", "Hi\n there ")]},
    {"messages": [said("user", "Hi")], "add_generation_prompt": True},
    {
        "messages": [
            said("system", "You are helpful. "),
            said("user", "What's ½ of 8?"),
            said("assistant", "<think>\nhm\n</think>\n\n4"),
            said("user", " 谢谢 👍🏽 "),
        ],
        "add_generation_prompt": True,
    },
    {"messages": [said("user", "Weather?")], "tools": [TOOL], "add_generation_prompt": True},
    {
        "messages": [said("system", "s"), said("user", "w?"), CALL, RESULT],
        "tools": [TOOL],
        "add_generation_prompt": True,
    },
    {
        "messages": [said("user", "w?"), CALL, RESULT, said("assistant", "It is 20."), said("user", "thx")],
        "tools": [TOOL, TOOL],
    },
    {"messages": [said("user", "q")], "enable_thinking": False, "add_generation_prompt": True},
    {
        "messages": [said("user", [{"type": "text", "text": " hello "}, {"type": "image"}])],
        "add_generation_prompt": True,
    },
    {"messages": [said("user", "a"), said("assistant", "b", reasoning_content="why"), said("user", "c")]},
    {"messages": [said("user", "a"), said("assistant", "b", reasoning="why")]},
    {"messages": [said("user", "a")], "documents": [{"title": "T", "text": "doc 1"}, {"text": "2"}]},
    {"messages": [said("assistant", "first")]},
    {
        "messages": [said("system", "/no_think be brief"), said("user", "q"), said("assistant", "\na")],
        "add_generation_prompt": True,
    },
    {"messages": []},
]

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def tokenizer():
    document = {"model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
    return graft.Tokenizer.from_json(json.dumps(document), json.dumps(SPECIAL))


def expected(template, chat):
    variables = {**SPECIAL, **chat}
    try:
        return render_jinja_template([variables.pop("messages")], chat_template=template, **variables)[0][0]
    except Exception as e:  # templates may raise anything in Python
        return e


@pytest.mark.parametrize("chat", range(len(CHATS)))
@pytest.mark.parametrize("name", TEMPLATES)
def test_same_as_transformers(tokenizer, name, chat):
    wanted = expected(TEMPLATES[name], CHATS[chat])
    variables = dict(CHATS[chat])
    messages = variables.pop("messages")
    if isinstance(wanted, Exception):
        with pytest.raises(graft.InvalidArgument):
            tokenizer.apply_chat_template(messages, chat_template=TEMPLATES[name], **variables)
    else:
        assert tokenizer.apply_chat_template(messages, chat_template=TEMPLATES[name], **variables) == wanted


def test_every_template_renders_most_chats():
    for name, template in TEMPLATES.items():
        rendered = [c for c in CHATS if isinstance(expected(template, c), str)]
        assert len(rendered) >= 6, name


# Jinja snippets that templates are made of, each compared with Jinja2's own rendering.
SNIPPETS = [
    "a{% if true %}\n  b\n  {%- endif %}\n\nc\n",
    "  {% if true %}x{% endif %}  \n  {# c #}  \n{{ 'y' }}\n z\n\n",
    "x  {%+ if true %} y {%+ endif +%}\nz",
    "{% raw %} {{ not }} {% endraw %}|{%- raw -%}  a  {%- endraw -%}  b",
    "{{ 1 }}{{ 1.0 }}{{ 1e20 }}{{ 0.1 + 0.2 }}{{ 1/3 }}{{ 7//2 }}{{ -7//2 }}{{ -7%3 }}{{ 2**10 }}{{ 2**-1 }}{{ 7.5//2 }}{{ 1_000 }}",
    "{{ true }}{{ none }}{{ [1, 'a', \"it's\", none, 1.5, true, {'k': (1,)}] }}{{ (1, 2) }}{{ {} }}{{ missing }}",
    "{{ 'é\\n\\t\\\\x\\u00e9' }}{{ ['\\n\\t', 'é', '\\x00', '\\u200b'] }}",
    "{{ 'a' 'b' ~ 1 ~ none ~ [1] }}{{ 'ab' * 3 }}{{ [1] * 2 + [3] }}",
    "{{ 'Hello'[1] }}{{ 'Hello'[-1] }}{{ 'Héllo'[1:3] }}{{ 'Hello'[::-1] }}{{ [1,2,3,4][::2] }}{{ [1,2,3][5:] }}{{ 'abc'[-2:] }}{{ 'abc'[:-1] }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a\\nb\\r\\nc'.splitlines() }}",
    "{{ ' x '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abc'.lstrip('ab') }}|{{ 'a-b'.replace('-', '+') }}|{{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ 'Hello World'.upper() }}{{ 'HI'.lower() }}{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}{{ 'straße'.upper() }}",
    "{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('b', 'c')) }}{{ 'abc'.find('c') }}{{ 'é-abc'.find('c') }}{{ 'abcabc'.count('b') }}{{ '12'.isdigit() }}",
    "{{ '{} and {x} {0}'.format(1, x='y') if false else '{}-{}'.format(1, 'b') }}{{ '%s|%d|%.2f' % ('a', 3, 1.5) }}{{ '%05d' % 42 }}",
    "{{ '-'.join(['a', 'b']) }}{{ ['a', 1, none] | join(', ') }}{{ [{'n': 1}, {'n': 2}] | join('-', attribute='n') }}",
    "{% for x in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('a','b') }}{% endfor %}",
    "{% for x in [1,2,3,4] if x % 2 == 0 %}{{ loop.index }}:{{ x }},{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}",
    "{% for x in [] %}a{% else %}empty{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}{{ range(3) | list }}{{ range(5, 0, -2) | list }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(a=1, b=[]) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }}{{ ns.b }}{% set ns.c = 'new' %}{{ ns.c }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}  text {{ a }} {% endset %}[{{ t }}]{% set u | trim | upper %} x {% endset %}[{{ u }}]",
    "{% macro m(a, b=2, c='x' ~ a) %}{{ a }}-{{ b }}-{{ c }}{{ varargs }}{{ kwargs }};{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(1, 2, 3, 4, k=5) }}",
    "{% macro w(t) %}<{{ t }}>{{ caller(7) }}</{{ t }}>{% endmacro %}{% call(n) w('b') %}in {{ n }}{% endcall %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% for item in [{'v': 1, 'c': [{'v': 2, 'c': []}]}] recursive %}{{ loop.depth }}{{ item.v }}{{ loop(item.c) }}{% endfor %}",
    "{% filter upper | trim %} abc {% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "{{ [3, 1, 2] | sort }}{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(reverse=true, case_sensitive=true) }}{{ [{'n': 2}, {'n': 1}] | sort(attribute='n') }}",
    "{{ [1, 2, 3] | map('string') | list }}{{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }}{{ ['a'] | map('upper') | join }}",
    "{{ [0, 1, none, 'a'] | select | list }}{{ [1, 2, 3] | select('odd') | list }}{{ [1, 2] | reject('equalto', 1) | list }}{{ [{'r': 1}, {'r': 2}] | selectattr('r', 'gt', 1) | list }}",
    "{{ [{'r': 1}, {}] | selectattr('r') | list }}{{ [{'r': 1}, {}] | rejectattr('r', 'defined') | list }}{{ none | selectattr('a') | list }}{{ 'yes' if ([] | select) else 'no' }}",
    "{{ [1, 2, 2, 1] | unique | list }}{{ [1, 5, 2] | max }}{{ [1, 5, 2] | min }}{{ [1, 2] | sum }}{{ [1, 2, 3] | batch(2) | list }}{{ [] | max }}",
    "{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1, 'a': 2} | items | list }}{{ [('a', 1)] | list }}{{ dict(a=1) }}{{ {'a': 1}.get('b', 'no') }}{{ {'a': 1}.get('b') }}",
    "{{ [1, 2] | first }}{{ [1, 2] | last }}{{ 'abc' | last }}{{ [1, 2] | length }}{{ 'é' | length }}{{ [1, 2, 3] | reverse | list }}{{ 'abc' | reverse }}",
    "{{ missing | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | d('x') }}{{ 1.7 | int }}{{ '12' | int }}{{ 'x' | int(5) }}{{ '1.5' | float }}",
    "{{ 2.5 | round }}{{ 1.256 | round(2) }}{{ 1.2 | round(method='ceil') }}{{ -3 | abs }}{{ 'a b' | title }}{{ 'abc' | capitalize }}{{ ' x ' | trim }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'long text that goes on' | truncate(12) }}",
    "{{ {'b': [1, 2.5, 'é<>&\"', none, true], 'a': {}} | tojson }}{{ {'b': [1, {}], 'a': []} | tojson(indent=2) }}{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
    "{{ '<a>' | e }}{{ '<b>' | safe + '<c>' }}{{ '<d>' | escape ~ '<e>' }}{{ 'a b/ü' | urlencode }}{{ 'one two' | wordcount }}",
    "{{ 1 is defined }}{{ x is defined }}{{ none is none }}{{ 'a' is string }}{{ 1 is number }}{{ 1.0 is float }}{{ true is boolean }}{{ 1 is integer }}{{ true is integer }}",
    "{{ {} is mapping }}{{ [] is sequence }}{{ 'a' is iterable }}{{ 4 is divisibleby 2 }}{{ 3 is odd }}{{ 1 is in [1, 2] }}{{ 1 is not in [1] }}{{ 'A' is upper }}{{ 1 is eq 1 }}{{ none is not defined }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ 'a' in 'abc' }}{{ 'a' not in ['a'] }}{{ 'k' in {'k': 1} }}{{ not true or false and x }}{{ 1 if false }}|{{ 1 if false else 2 if false else 3 }}",
    "{{ -1 | abs }}{{ - 2 ** 2 }}{{ (1, 2)[0] }}{{ {'a': {'b': [1, 2]}}.a.b[1] }}{{ {'a': 1}['a'] }}{{ {'items': 1}['items'] }}{{ 'x'.missing is defined }}",
    "{{ [1, 2] == [1, 2] }}{{ (1,) == [1] }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' == 'a' }}{{ {'a': 1} == {'a': 1.0} }}{{ none == false }}{{ missing == none }}",
    "{{ 'abc' | replace('b', 'x') }}{{ 'a' | string | length }}{{ [[1, 2], [3]] | map('first') | list }}{{ [{'k': 'a', 'v': 1}, {'k': 'a', 'v': 2}] | groupby('k') | length }}",
]


@pytest.mark.parametrize("source", SNIPPETS)
def test_same_as_jinja(tokenizer, source):
    wanted = render_jinja_template([[]], chat_template=source)[0][0]
    assert tokenizer.apply_chat_template([], chat_template=source) == wanted


RAISING = [
    "{{ missing.attribute }}", "{{ missing() }}", "{{ missing + 'a' }}", "{{ 'a' + 1 }}", "{{ 1 // 0 }}", "{{ none | length }}",
    "{% for x in 5 %}{% endfor %}", "{{ raise_exception('no') }}", "{% set a, b = [1] %}", "{{ 'a' < 1 }}", "{{ [1].append(2) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ range(1000000) }}", "{{ 1() }}", "{% set x.y = 1 %}",
]  # fmt: skip


@pytest.mark.parametrize("source", RAISING)
def test_what_raises_in_jinja_is_an_error(tokenizer, source):
    with pytest.raises(Exception):
        render_jinja_template([[]], chat_template=source)
    with pytest.raises(graft.InvalidArgument, match="chat template"):
        tokenizer.apply_chat_template([], chat_template=source)


def test_raise_exception_says_what_the_template_says(tokenizer):
    with pytest.raises(graft.InvalidArgument, match="chat template: roles must alternate"):
        tokenizer.apply_chat_template([], chat_template="{{ raise_exception('roles must alternate') }}")


def test_errors_name_the_line(tokenizer):
    with pytest.raises(graft.InvalidArgument, match="line 3: 'x' is undefined"):
        tokenizer.apply_chat_template([], chat_template="a\nb\n{{ x.y }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{",
        "{% if %}",
        "{% if x %}",
        "{{ 'a }}",
        "{{ (1 }}",
        "{% endfor %}",
        "{{ 1 + }}",
        "{% for x %}{% endfor %}",
        "{# a",
        "{{ ? }}",
    ]
    + [
        "{% break %}",
        "{{ a b }}",
        "{% raw %}",
        "{{ [1, }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ 99999999999999999999 }}",
    ],
)
def test_what_cannot_be_parsed(tokenizer, source):
    with pytest.raises(graft.InvalidProgram, match="chat template, line 1"):
        tokenizer.apply_chat_template([], chat_template=source)


def test_long_expressions_end_in_an_error(tokenizer):
    with pytest.raises(graft.Error):
        tokenizer.apply_chat_template([], chat_template="{{ 0" + "+1" * 5000 + " }}")


@pytest.mark.parametrize("source", ["{% include 'x' %}", "{{ x | nonsense }}", "{{ x is nonsense }}", "{{ f(*x) }}"])
def test_what_is_not_supported_is_named(tokenizer, source):
    with pytest.raises(graft.Unsupported):
        tokenizer.apply_chat_template([], chat_template=source)


def test_date(tokenizer):
    before = datetime.datetime.now()
    text = tokenizer.apply_chat_template([], chat_template="{{ strftime_now('%d %b %Y') }}")
    assert text in {d.strftime("%d %b %Y") for d in (before, datetime.datetime.now())}


def test_no_template_and_bad_variables(tokenizer):
    with pytest.raises(graft.InvalidArgument, match="no chat template"):
        tokenizer.apply_chat_template([])
    with pytest.raises(graft.InvalidArgument, match="not valid JSON"):
        tokenizer._c.apply_chat_template("{", "x")
    with pytest.raises(graft.InvalidArgument, match="array of messages"):
        tokenizer._c.apply_chat_template('{"messages": 1}', "x")


def test_the_templates_of_the_files():
    document = json.dumps({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})
    one = graft.Tokenizer.from_json(
        document, json.dumps({"chat_template": "{{ eos_token }}!", "eos_token": {"content": "E"}})
    )
    assert one.apply_chat_template([]) == "E!"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert graft.Tokenizer.from_json(document, json.dumps({"chat_template": several})).apply_chat_template([]) == "d"


LARGEST = 2**63 - 1

HOSTILE = {
    # A list in a list in a list, printed, compared, ordered, written as JSON and freed.
    **{
        f"deep {use}": "{% set ns = namespace(x=[], y=[]) %}{% for i in range(99999) %}"
        "{% set ns.x = [ns.x] %}{% set ns.y = {'a': ns.y} %}{% endfor %}" + use
        for use in (
            "{{ ns.x }}",
            "{{ ns.y }}",
            "{{ ns.x == ns.x }}",
            "{{ ns.x < ns.x }}",
            "{{ ns.x | tojson }}",
            "{{ ns.y | tojson }}",
            "",
        )
    },
    "deep methods": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x.count] %}{% endfor %}",
    # Doubles each time.
    "wide": "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "wide and equal": "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "doubled text": "{% set ns = namespace(x='ab') %}{% for i in range(70) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "added text": "{% set ns = namespace(x='ab') %}{% for i in range(70) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "repeated text": "{{ 'ab' * 9223372036854775807 }}",
    "replaced text": "{% set s = 'a' * 100000 %}{{ s.replace('a', s) }}",
    "joined text": "{% set s = 'a' * 100000 %}{{ s.join(range(100000) | map('string') | list) }}",
    "joined by a filter": "{{ range(100000) | join('a' * 100000) }}",
    "indented text": "{{ ('\\n' * 100000) | indent('a' * 100000, blank=true) }}",
    "formatted text": "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "characters": "{% set ns = namespace(x='ab') %}{% for i in range(26) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{% for c in ns.x %}{% endfor %}",
    "filled batch": "{{ [1] | batch(9223372036854775807, 0) | list }}",
    # Integer overflow.
    "sum": f"{{{{ {LARGEST} + 1 }}}}",
    "difference": f"{{{{ -{LARGEST} - 2 }}}}",
    "product": f"{{{{ {LARGEST} * 2 }}}}",
    "sign": f"{{{{ -(-{LARGEST} - 1) }}}}",
    "format of a float": "{{ '%d' % 1e300 }}",
    # Deep syntax trees.
    "many elif": "{% if 0 %}" + "{% elif 0 %}" * 20000 + "{% endif %}",
    "many filters": "{% set x" + "|trim" * 20000 + " %}a{% endset %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_grows_without_end_is_an_error(tokenizer, name):
    with pytest.raises((graft.InvalidArgument, graft.InvalidProgram), match="chat template, line 1"):
        tokenizer.apply_chat_template([], chat_template=HOSTILE[name])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (f"{{{{ range({LARGEST - 1}, {LARGEST}, 5) | list }}}}", f"[{LARGEST - 1}]"),
        (f"{{{{ [1, 2, 3][1::{LARGEST}] }}}}", "[2]"),
        (f"{{{{ (-{LARGEST} - 1) is divisibleby(-1) }}}}", "True"),
        (f"{{{{ 'a,b,c'.split(',', -{LARGEST} - 1) }}}}", "['a', 'b', 'c']"),
        (f"{{{{ 'aaa'.replace('a', 'b', -{LARGEST} - 1) }}}}", "bbb"),
        (f"{{{{ 'text' | truncate({LARGEST}) }}}}", "text"),
        ("{{ [[1, 2], [3]] < [[1, 2], [4]] }}", "True"),
        ("{{ [[1, 2], [3]] < [[1, 2]] }}{{ [[1]] < [[1], []] }}{{ [none] < [none] }}", "FalseTrueFalse"),
        ("{{ " + "[" * 50 + "1" + "]" * 50 + " < " + "[" * 50 + "2" + "]" * 50 + " }}", "True"),
        # A chain of namespaces, and a cycle.
        (
            "{% set ns = namespace(a=namespace()) %}{% set ns.b = ns.a %}{% for i in range(99999) %}"
            "{% set n = namespace() %}{% set b = ns.b %}{% set b.x = n %}{% set ns.b = n %}{% endfor %}{% set ns.x = ns %}a",
            "a",
        ),
        # A chain of loops, each of which refers to the previous one.
        (
            "{% set ns = namespace(l=0) %}{% macro m(x) %}{% for i in [1] %}{% set ns.l = loop %}{{ loop.changed(x) }}"
            "{% endfor %}{% endmacro %}{% for i in range(99999) %}{% set _ = m(ns.l) %}{% endfor %}{{ ns.l.index }}",
            "1",
        ),
    ],
)
def test_the_ends_of_numbers_and_values(tokenizer, source, text):
    assert tokenizer.apply_chat_template([], chat_template=source) == text


def test_a_loop_behind_its_end(tokenizer):
    keep = "{% set ns = namespace(l=0) %}{% for i in [1] recursive %}{% set ns.l = loop %}{% endfor %}"
    with pytest.raises(graft.InvalidArgument, match="behind its loop"):
        tokenizer.apply_chat_template([], chat_template=keep + "{{ ns.l.changed(1) }}")


def test_variables_in_variables(tokenizer):
    deep = "[" * 100_000 + "]" * 100_000
    with pytest.raises(graft.InvalidArgument, match="nested too deeply"):
        tokenizer._c.apply_chat_template(f'{{"messages": {deep}}}', "x")
    shallow = "[" * 150 + "]" * 150
    assert tokenizer._c.apply_chat_template(f'{{"messages": [], "x": {shallow}}}', "{{ x }}") == shallow
