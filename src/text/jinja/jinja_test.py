"""Every test and filter of Jinja2 and every method of Python's texts, lists and dicts, on values of every type: the text is
Jinja2's own, or the template is refused. (What Jinja2 refuses may be rendered: surplus arguments are not looked at.)"""

from __future__ import annotations

import json
import re

import jinja2
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

import graft

VALUES = [
    "'abc'", "'ABC'", "''", "'12'", "' é b '", "'x\\n\\ty'", "1", "0", "-35", "2.5", "true", "false", "none", "missing",
    "[1, 'a']", "[3, 1, 2]", "[{'a': 2}, {'a': 1}]", "[]", "(1, 2)", "{'a': 1, 'b': none}", "'<a & \"b\\'>'", "range",
]  # fmt: skip
ARGUMENTS = ["", "1", "-1", "'a'", "'a', 'b'", "'-', 2", "none", "[1, 'abc']", "true"]

# What a Python program prints there depends on the program: addresses of objects.
OBJECT = re.compile(r"<[\w ]+ (object )?at 0x|<(class|built-in|function|bound)|dict_(items|keys|values)\(")


@pytest.fixture(scope="module")
def tokenizer():
    document = {"model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}
    return graft.Tokenizer.from_json(json.dumps(document), "{}")


def same(tokenizer, source: str) -> bool | None:
    """None where it is refused, or where Jinja2's text is that of an object or no text."""
    try:
        wanted = render_jinja_template([[]], chat_template=source)[0][0]
    except Exception:  # templates may raise anything in Python
        return None
    if OBJECT.search(wanted):
        return None
    try:
        text = tokenizer.apply_chat_template([], chat_template=source)
    except (graft.InvalidArgument, graft.Unsupported):
        return None
    assert text == wanted, source
    return True


def exact(tokenizer, sources) -> int:
    return sum(same(tokenizer, source) is True for source in sources)


@pytest.mark.parametrize("name", sorted(jinja2.defaults.DEFAULT_TESTS))
def test_tests(tokenizer, name):
    sources = [
        f"{{{{ [{value}] | select('{name}'{', ' * bool(argument)}{argument}) | list | length }}}}"
        for value in VALUES
        for argument in ARGUMENTS
    ]
    assert exact(tokenizer, sources) >= (0 if name == "escaped" else 5)


FILTERS = {name for name in jinja2.defaults.DEFAULT_FILTERS if name != "random"}
ABSENT = {"center", "filesizeformat", "forceescape", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr"}


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_filters(tokenizer, name):
    sources = [
        f"{{{{ {value} | {name}{f'({argument})' if argument else ''}{' | list' if iterates else ''} }}}}"
        for value in VALUES
        for argument in ARGUMENTS
        for iterates in (False, True)
    ]
    found = exact(tokenizer, sources)
    assert found == 0 if name in ABSENT else found >= 1


# That graft refuses by name, and those that change a value, which the sandbox of templates forbids.
ABSENT_METHODS = {
    str: set(
        "casefold center encode expandtabs format_map isascii isdecimal isidentifier isprintable istitle ljust maketrans "
        "rindex rjust swapcase translate zfill".split()
    ),
    list: set("append clear copy extend insert pop remove reverse sort".split()),
    dict: set("clear fromkeys pop popitem setdefault update".split()),
}
METHODS = [(kind, name) for kind in (str, list, dict) for name in dir(kind) if not name.startswith("_")]


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_methods(tokenizer, kind, name):
    values = [value for value in VALUES if value[0] in {str: "'", list: "[", dict: "{"}[kind]]
    sources = [
        f"{{{{ ({value}).{name}({argument}){' | list' if iterates else ''} }}}}"
        for value in values
        for argument in [*ARGUMENTS, "'a', 5"]
        for iterates in (False, True)
    ]
    found = exact(tokenizer, sources)
    assert found == 0 if name in ABSENT_METHODS[kind] else found >= 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 | round }}{{ -35 | round(-1) }}{{ 25 | round(-1) }}{{ 15 | round(-1) }}{{ true | round }}{{ 7 | round(-19) }}",
        "{{ {'a': 1} | attr('a') }}{{ {'a': 1} | attr('items') is callable }}{{ missing is callable }}",
        "{{ dict([('a', 1), ('b', 2)], c=3) }}{{ dict({'a': 1}) }}{{ 5 % 2.5 }}{{ -7.5 % 2 }}{{ 3 * 'ab' }}{{ -2.5 }}",
        "{{ ['\\r\\\\', '\\x08\\x0c\\t'] | tojson }}{{ '\U0001f600' | tojson(ensure_ascii=true) }}{{ {true: 1, none: 2, 3: 4} | tojson }}",
        "{% for x in [1, 2] recursive %}{{ loop.revindex0 }}{{ loop.depth0 }}{{ loop.changed(x) }}{{ loop.changed(1) }}{% endfor %}",
    ],
)
def test_more(tokenizer, source):
    assert same(tokenizer, source)


@pytest.mark.parametrize("source", ["{{ 'a' is sameas 'a' }}", "{{ 1 is sameas 1 }}"])
def test_identity_depends_on_python(tokenizer, source):
    with pytest.raises(graft.Unsupported, match="'is sameas' of two values of type"):
        tokenizer.apply_chat_template([], chat_template=source)
