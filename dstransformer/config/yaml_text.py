"""YAML as people write it: ``1e-9`` is a number, a key stands once, and what cannot be read is said in one line."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dstransformer.errors import ConfigError, shown

#: A number with an exponent, which YAML 1.1 takes only with a point and a sign in it.
_EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's floats, without dates, and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that stands twice: the last would win silently."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"repeated key {key.value!r}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def parse_yaml(text: str, name: str) -> Any:
    """The value of YAML text; ``name`` is what errors call it.

    Raises:
        ConfigError: It is not YAML, or a mapping states a key twice.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or error.context or "unreadable"
        if problem.startswith("repeated key"):
            raise ConfigError(f"{name}{where}: {shown(problem, quote=False)}: state it once") from None
        raise ConfigError(f"{name}{where} is not valid YAML: {shown(problem, quote=False)}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{name} is not valid YAML: {error.reason} at character {error.position + 1}") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{name} is not valid YAML: {shown(error, quote=False)}") from None
    except RecursionError:
        raise ConfigError(f"{name} is not usable YAML: it is nested too deeply") from None
