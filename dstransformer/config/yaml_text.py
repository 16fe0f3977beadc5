"""A stricter YAML parser: ``1e-9`` is a number, repeated keys are errors, and every error is one line."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

import yaml

from dstransformer.errors import ConfigError, shown

#: Numbers as YAML 1.2 has them, and ``_`` between digits. YAML 1.1 also reads octal ones and base 60, as in ``1:30``,
#: and requires a decimal point and a sign in an exponent. Longer numbers are text, which is no value of a number.
_INTEGER = re.compile(r"^[-+]?[0-9][0-9_]{0,99}$")
_FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$"
    r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
)

#: Maximum bytes of a YAML file; the largest configuration has 6,000.
MAX_BYTES = 2**18

#: Maximum values of a file. Each repetition by an alias counts.
MAX_VALUES = 20_000


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2 numbers, without dates and repeated keys, and with bounds."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Refuse aliases that repeat a value too often, or within itself, before any value is constructed."""
        _count_values(node, {})
        return super().construct_document(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read an integer in decimal: ``017`` is 17."""
        return int(self.construct_scalar(node).replace("_", ""))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, of which PyYAML would silently keep the last value."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"repeated key {key.value!r}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def _count_values(node: yaml.Node, counted: dict[int, int]) -> int:
    """The number of values of a node, itself included. ``counted`` caches it, 0 while it is counted."""
    if id(node) not in counted:
        counted[id(node)] = 0
        parts: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        counted[id(node)] = 1 + sum(_count_values(part, counted) for part in parts)
    number = counted[id(node)]
    if number == 0:
        raise yaml.constructor.ConstructorError(None, None, "an alias repeats a value within itself", node.start_mark)
    if number > MAX_VALUES:
        raise yaml.constructor.ConstructorError(
            None, None, f"more than {MAX_VALUES:,} values, with those that aliases repeat", node.start_mark
        )
    return number


def leading_comment(text: str) -> str:
    """The comment at the top of YAML text, on one line."""
    return " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML text. ``name`` identifies it in error messages.

    Raises:
        ConfigError: The text is not valid YAML, a mapping repeats a key, or it has more than :data:`MAX_BYTES` bytes
            or :data:`MAX_VALUES` values.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{name} is larger than the {MAX_BYTES:,} bytes that a configuration may have")
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or error.context or "unreadable"
        if "'\\t'" in problem:
            problem = "a tab; indent with spaces"
        if "found another document" in problem:
            problem = "`---` begins a second document; keep one"
        if problem.startswith("repeated key"):
            raise ConfigError(f"{name}{where}: {shown(problem, quote=False)}: state it once") from None
        raise ConfigError(f"{name}{where} is not valid YAML: {shown(problem, quote=False)}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{name} is not valid YAML: {error.reason} at character {error.position + 1}") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{name} is not valid YAML: {shown(error, quote=False)}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply: flatten it") from None
