"""From a preset's name to a checked ``Config``: inheritance, overrides, and errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dstransformer.config.schema import Config
from dstransformer.errors import ConfigError

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """The presets that come with the package, ``base`` first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return ["base", *(name for name in names if name != "base")]


def preset_summary(name: str) -> str:
    """The comment on a preset's first lines, in one line."""
    lines = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = []
    for line in lines:
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment)


def load_config(preset: str, overrides: Sequence[str] = (), fragments: Sequence[str] = ()) -> Config:
    """The configuration of ``preset`` (a name, or the path of a YAML file) with its overrides applied.

    Args:
        preset: A name from :func:`preset_names`, or a path ending in ``.yaml``.
        overrides: ``section.key=value`` strings; the value is read as YAML.
        fragments: DeepSpeed fragments that replace the preset's ``deepspeed`` list where there are any.

    Raises:
        ConfigError: An unknown preset, key or type, or a value out of its bounds.
    """
    tree = _resolve(preset, ())
    for override in overrides:
        _apply(tree, override)
    if fragments:
        tree["deepspeed"] = list(fragments)
    return parse_config(tree, f"preset {preset!r}")


def read_config(path: Path) -> Config:
    """The resolved configuration a run or a bundle holds in ``config.yaml``."""
    return parse_config(_read_yaml(path), str(path))


def write_config(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    path.write_text(dump_config(config), encoding="utf-8")


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML text."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def parse_config(tree: Mapping[str, Any], origin: str) -> Config:
    """Check a nested mapping; ``origin`` says in an error where it came from."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{origin}: {_explain(error)}") from None


def _resolve(preset: str, seen: tuple[str, ...]) -> dict[str, Any]:
    path = _find(preset)
    if preset in seen:
        raise ConfigError(f"preset {preset!r} extends itself: {' -> '.join((*seen, preset))}")
    tree = _read_yaml(path)
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    return _merge(_resolve(str(parent), (*seen, preset)), tree)


def _find(preset: str) -> Path:
    if preset.endswith((".yaml", ".yml")):
        path = Path(preset)
        if not path.is_file():
            raise ConfigError(f"preset file {preset} does not exist")
        return path
    path = PRESETS / f"{preset}.yaml"
    if "/" in preset or not path.is_file():
        near = get_close_matches(preset, preset_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown preset {preset!r}: {hint}`dst presets` lists what there is")
    return path


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds no configuration: expected sections such as 'model:'")
    return tree


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _apply(tree: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r} is not of the form section.key=value")
    node = tree
    for depth, key in enumerate(keys):
        known = node if isinstance(node, dict) else {}
        if key not in known:
            near = get_close_matches(key, list(known), n=1)
            hint = f"did you mean {'.'.join([*keys[:depth], near[0]])!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"--set {override!r}: there is no key {'.'.join(keys[: depth + 1])!r}; {hint}")
        if depth < len(keys) - 1:
            node = node[key]
    if isinstance(node[keys[-1]], dict):
        raise ConfigError(f"--set {override!r}: {name!r} is a section; set one of {', '.join(node[keys[-1]])}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {override!r}: {text!r} is not a YAML value") from None
    if isinstance(value, str) and not isinstance(node[keys[-1]], str):
        value = _number(value)  # YAML 1.1 reads 1e-9, without a point, as a string
    node[keys[-1]] = value


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _explain(error: ValidationError) -> str:
    problems = []
    for detail in error.errors():
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            problems.append(f"unknown key {where!r}")
        elif detail["type"] == "missing":
            problems.append(f"missing key {where!r}")
        else:
            message = detail["msg"].removeprefix("Value error, ")
            problems.append(
                f"{where} = {detail['input']!r}: {message[0].lower()}{message[1:]}"
                if not isinstance(detail["input"], dict)
                else f"{where}: {message}"
            )
    return "; ".join(problems)
