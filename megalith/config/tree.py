"""Between YAML text and a tree of dicts, lists and text; and from dataclasses back to YAML.

Scalars stay text until the field that they fill says what they are. So `lr: 1e-4` is a number, `prefix: 007` and
`prefix: yes` are text, and none of YAML 1.1's surprises (octal, sexagesimal, dates, `on`, `no`) can happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

import yaml

from megalith.config.wording import shown


def parse_yaml(text: str, found: list[str]) -> Any:
    """The tree in `text`; a message for each key that is given twice goes into `found`.

    Raises ValueError where the text is not YAML.
    """

    class Loader(yaml.BaseLoader):  # as safe as safe_load: makes str, list and dict only, whatever tags say
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in lines:
                    found.append(f"{shown(name)} is given twice, in lines {lines[name]} and {line}; remove one of them")
                lines.setdefault(name, line)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def is_null(value: Any) -> bool:
    """Whether a scalar says that nothing is there."""
    return isinstance(value, str) and value.lower() in ("", "null", "~")


def lay_over(tree: dict, override: str, shorthands: Mapping[str, str], found: list[str]) -> None:
    """Put the value of `a.b=value` at its place in `tree`; a list or mapping is written as in YAML.

    `shorthands`: where text stands at one of these keys and the override goes below it, the text is the field named.
    """
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        found.append(f"{shown(override)} is not an override; write key=value, for example optimizer.lr=1e-4")
        return
    value: Any = text.strip()
    if value[:1] in ("[", "{", '"', "'"):
        try:
            value = parse_yaml(value, found)
        except ValueError:
            found.append(f"{shown(override)} does not hold valid YAML; close its brackets and quotes")
            return
    for name in names[:-1]:
        inner = tree.get(name)
        if isinstance(inner, str) and name in shorthands and not is_null(inner):
            inner = {shorthands[name]: inner}
        tree[name] = dict(inner) if isinstance(inner, dict) else {}
        tree = tree[name]
    tree[names[-1]] = value


def to_tree(node: Any) -> Any:
    """A dataclass as plain dicts, lists, numbers and text, every field written out."""
    return _plain(asdict(node))


def to_yaml(node: Any) -> str:
    """A dataclass as YAML with every field written out; reading it gives an equal one."""
    return yaml.safe_dump(to_tree(node), sort_keys=False, allow_unicode=True, width=120)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    return value.value if isinstance(value, Enum) else value
