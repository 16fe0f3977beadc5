"""A stricter YAML parser: ``1e-9`` is a number, repeated keys are errors, and every error is one line."""

from __future__ import annotations

import re
from typing import Any

import yaml

from dstransformer.errors import ConfigError, shown

#: A float with an exponent. YAML 1.1 requires a decimal point and a sign in the exponent; this does not.
_EXPONENT = re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2 floats, and without dates and repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, of which PyYAML would silently keep the last value."""
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
    """Parse YAML text. ``name`` identifies it in error messages.

    Raises:
        ConfigError: The text is not valid YAML, or a mapping repeats a key.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or error.context or "unreadable"
        if "'\\t'" in problem:
            problem = "a tab; indent with spaces"
        if problem.startswith("repeated key"):
            raise ConfigError(f"{name}{where}: {shown(problem, quote=False)}: state it once") from None
        raise ConfigError(f"{name}{where} is not valid YAML: {shown(problem, quote=False)}") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{name} is not valid YAML: {error.reason} at character {error.position + 1}") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"{name} is not valid YAML: {shown(error, quote=False)}") from None
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply: flatten it") from None
