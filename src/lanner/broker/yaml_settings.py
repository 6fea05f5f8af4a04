"""A broker's settings as YAML: names and values with the lines that they stand in.

Every value is taken as it is written, as text: whether `no` is a name or a switch, and `8080` a port or a number, is
for the setting to say, not for YAML. Nothing is constructed, so a file can ask for no type, and a value can be no
structure but a list of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import yaml

_NULL: Final = "tag:yaml.org,2002:null"


def read_settings(text: str) -> Iterator[tuple[str, str | list[str] | None, int]]:
    """Each setting of a file as (name, value, line). None: it is none of text, number, switch or list of text.

    ValueError: the file does not parse, or holds something else than names and values.
    """
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise ValueError(f"{error.problem or error.context}{line}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None
    if document is None:
        return
    if not isinstance(document, yaml.MappingNode):
        raise ValueError("it must hold names and values, one `name: value` a line")
    for name, value in document.value:
        yield str(name.value), _plain(value), name.start_mark.line + 1


def _plain(node: yaml.Node) -> str | list[str] | None:
    if node.tag == _NULL or node.tag not in yaml.SafeLoader.yaml_constructors:
        return None
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [str(item.value) for item in node.value]
    return None
