"""Loads a preset into a validated ``Config``: inheritance, overrides, and errors that name the key."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dstransformer.config.schema import Config
from dstransformer.config.yaml_text import MAX_BYTES, leading_comment, parse_yaml
from dstransformer.errors import ConfigError, shown
from dstransformer.io.files import read_bounded

PRESETS = Path(__file__).parent / "presets"

#: Keys that left the configuration, with the value that every model of today has: stored ones may state it.
LEFT: tuple[tuple[str, str, object], ...] = (("model", "source_end", True),)


def preset_names() -> list[str]:
    """The names of the presets included in the package: ``base`` first, those in folders (``table3/…``) last."""
    names = [path.relative_to(PRESETS).with_suffix("").as_posix() for path in PRESETS.rglob("*.yaml")]
    return sorted(names, key=lambda name: (name != "base", "/" in name, name))


def preset_summary(name: str) -> str:
    """The comment at the top of a preset, on one line."""
    return leading_comment((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))


def load_config(preset: str | os.PathLike[str], overrides: Sequence[str] = (), fragments: Sequence[str] = ()) -> Config:
    """Load a preset and apply overrides.

    Args:
        preset: A name from :func:`preset_names`, or a path ending in ``.yaml`` or ``.yml``.
        overrides: ``section.key=value`` strings; the value is read as YAML.
        fragments: DeepSpeed fragments. If not empty, they replace the preset's ``deepspeed`` list.

    Raises:
        ConfigError: The preset or a key is unknown, or a value has the wrong type or is out of bounds.
    """
    preset = os.fspath(preset)
    for name, given in (("overrides", overrides), ("fragments", fragments)):
        if isinstance(given, str):
            raise ConfigError(f"{name} is the string {shown(given)}: give a list of strings, [{shown(given)}]")
        if others := [value for value in given if not isinstance(value, str)]:
            raise ConfigError(f"{name} holds {shown(others[0])}, which is not a string: give a list of strings")
    tree = _without_left(_resolve(preset))
    _check_complete(tree, preset)
    for override in overrides:
        _apply_override(tree, override)
    if fragments:
        tree["deepspeed"] = list(fragments)
    overridden = {override.partition("=")[0].strip() for override in overrides}
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        wrong = {".".join(map(str, detail["loc"][:2])) for detail in error.errors()}
        origin = "--set" if wrong <= overridden else f"preset {preset!r}"
        raise ConfigError(f"{origin}: {_describe_errors(error)}") from None


def width_warning(config: Config, preset: str | os.PathLike[str], overrides: Sequence[str]) -> str | None:
    """A warning if the heads are as wide as inherited, but no longer fit a ``d_model`` or ``num_heads`` that was set.

    The configuration is what :func:`load_config` made of the other two. What the preset sets itself counts, unless an
    override sets one of the three.
    """
    model, widths = config.model, {"model.d_model", "model.num_heads", "model.d_k"}
    of_overrides = widths & {override.partition("=")[0].strip() for override in overrides}
    given = of_overrides or widths & _keys(read_yaml(_find_preset(os.fspath(preset), Path())))
    if model.num_heads * model.d_k == model.d_model or not given or "model.d_k" in given:
        return None
    return (
        f"model.num_heads = {model.num_heads} times the inherited model.d_k = {model.d_k} is not model.d_model = "
        f"{model.d_model}: set model.d_k and model.d_v too"
    )


def read_config(path: Path) -> Config:
    """Read a resolved configuration written by :func:`write_config`.

    Raises:
        ConfigError: The file cannot be read, is not a configuration, or was written by a newer version.
    """
    return complete_config(read_yaml(path), str(path))


def complete_config(tree: Mapping[str, Any], origin: str) -> Config:
    """Validate a stored configuration, which errors call ``origin``, taking missing keys from ``base.yaml``.

    Raises:
        ConfigError: A key is unknown, for example because a newer version wrote it, or a value is invalid.
    """
    base, tree = _base(), _without_left(tree)
    unknown = {key for key in _keys(tree) - _keys(base) if key not in base}
    if unknown:
        raise ConfigError(
            f"{origin} has the key {shown(min(unknown))}, which this version does not know: use the version of "
            "dstransformer that wrote it, or a newer one"
        )
    try:
        return Config.model_validate(merge(base, tree))
    except ValidationError as error:
        raise ConfigError(f"{origin}: {_describe_errors(error)}") from None


def _without_left(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys of :data:`LEFT` that state the value of today."""
    kept = dict(tree)
    for name, key, value in LEFT:
        section = kept.get(name)
        if isinstance(section, Mapping) and section.get(key) is value:
            kept[name] = {other: section[other] for other in section if other != key}
    return kept


def write_config(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    path.write_text(dump_config(config), encoding="utf-8")


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML text."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def _resolve(preset: str, children: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Merge a preset with the presets it extends.

    A path is relative to the folder of the file that extends it, which is the last of ``children``.
    """
    try:
        path = _find_preset(preset, children[-1].parent if children else Path())
    except ConfigError as error:
        raise ConfigError(f"{children[-1]} extends {shown(preset)}: {error}" if children else str(error)) from None
    if os.path.realpath(path) in map(os.path.realpath, children):
        raise ConfigError(f"preset {preset!r} extends itself: {' -> '.join(map(str, (*children, path)))}")
    tree = read_yaml(path)
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    if not isinstance(parent, str):
        raise ConfigError(f"{path}: extends = {shown(parent)}: name one preset or file")
    return merge(_resolve(parent, (*children, path)), tree)


def _check_complete(tree: Mapping[str, Any], preset: str) -> None:
    base = _base()
    for name, value in tree.items():
        if isinstance(base.get(name), dict) and not isinstance(value, dict):
            raise ConfigError(
                f"preset {shown(preset)}: {name} = {shown(value)}: it is a section, write its keys below it"
            )
    missing = sorted(_keys(base) - _keys(tree))
    if missing:
        raise ConfigError(
            f"preset {shown(preset)} lacks {len(missing)} keys, starting with {missing[0]!r}: add the line "
            "`extends: base` to inherit them"
        )


def _keys(tree: Mapping[str, Any]) -> set[str]:
    """The names of all values: ``section.key``, or the plain name outside a section."""
    return {
        f"{name}.{key}" if key else str(name)
        for name, section in tree.items()
        for key in (section if isinstance(section, Mapping) else ("",))
    }


def _find_preset(preset: str, folder: Path) -> Path:
    if not preset.strip():
        raise ConfigError("the name of the preset is empty: is a variable unset?")
    path = folder / preset
    if preset.endswith((".yaml", ".yml")):
        if os.path.lexists(path):
            return path
        name = preset.rpartition(".")[0]
        hint = f": leave out the ending for the preset {name!r} of the package" if name in preset_names() else ""
        raise ConfigError(f"preset file {shown(path, quote=False, limit=200)} does not exist{hint}")
    if preset not in preset_names():
        near = get_close_matches(preset, preset_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        if os.path.lexists(path):
            hint = f"the name of a preset file ends in .yaml; rename it to {preset}.yaml, or name a preset: "
            if path.is_dir():
                hint = "it is a folder here; name a .yaml file in it, or a preset: "
        for ending in (".yaml", ".yml"):
            if os.path.lexists(f"{path}{ending}"):
                hint = f"did you mean the file {preset}{ending}? "
        raise ConfigError(f"unknown preset {shown(preset)}: {hint}`dst presets` lists all presets")
    return PRESETS / f"{preset}.yaml"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or does not hold a mapping.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file: name a YAML file")
    try:
        text = read_bounded(path, MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise ConfigError(f"{path}, byte {error.start + 1}: not UTF-8; convert it") from None
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from None
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds no configuration: write each section as `name:`, and its keys below it")
    return tree


@cache
def _base() -> dict[str, Any]:
    """The content of ``base.yaml``; callers must not modify it."""
    return read_yaml(PRESETS / "base.yaml")


def merge(base: dict[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``base`` with the values of ``override``, section by section. An empty section changes nothing."""
    merged = dict(base)
    for key, value in override.items():
        old = merged.get(key)
        if isinstance(old, dict) and value is None:
            continue  # an empty section
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _apply_override(tree: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    given = f"--set {shown(override)}"
    if not equals or not all(keys):
        raise ConfigError(f"{given} is not of the form section.key=value (with `=` and no space)")
    node: Any = tree
    for depth, key in enumerate(keys):
        if not isinstance(node, dict):
            raise ConfigError(f"{given}: {'.'.join(keys[:depth])!r} is a value and has no keys; set it as a whole")
        if key not in node:
            near = _elsewhere(key) or [
                ".".join([*keys[:depth], name]) for name in get_close_matches(key, list(node), 1)
            ]
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(node)}"
            raise ConfigError(f"{given}: there is no key {shown('.'.join(keys[: depth + 1]))}; {hint}")
        section, node = node, node[key]
    if isinstance(node, dict):
        raise ConfigError(f"{given}: {name!r} is a section; set one of {', '.join(node)}")
    value = parse_yaml(text, given)
    if keys == ["deepspeed"] and not isinstance(value, list):
        raise ConfigError(f"{given}: name the DeepSpeed fragments with --ds, for example `--ds zero1 bf16`")
    section[keys[-1]] = value


def _describe_errors(error: ValidationError) -> str:
    """Describe the first two problems and count the rest."""
    problems = [_describe_error(detail) for detail in error.errors()]
    rest = f"; and {len(problems) - 2} more" if len(problems) > 2 else ""
    return "; ".join(problems[:2]) + rest


_BOUNDS = {
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
}


def _describe_error(detail: Mapping[str, Any]) -> str:
    where = shown(".".join(str(part) for part in detail["loc"]), quote=False)
    if detail["type"] == "extra_forbidden":
        return f"unknown key {shown(where)}{_suggest(detail['loc'])}"
    if detail["type"] == "invalid_key":
        return f"unknown key {where!r}"
    if detail["type"] == "missing":
        return f"missing key {where!r}"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "list_type":
        message = "write a list, such as [zero1, bf16]" if where.endswith("deepspeed") else "write a list, [ … ]"
    if detail["type"] in ("int_type", "int_from_float"):
        given = detail["input"]
        if isinstance(given, float) and given.is_integer() and abs(given) < 1e15:
            message = f"write it as an integer, {int(given)}"
    bound = _BOUNDS.get(detail["type"])
    if bound is not None:
        message = bound.format(**detail["ctx"])
    if isinstance(detail["input"], dict) and detail["type"] == "value_error":  # a check across a section's values
        return f"{where}: {message}" if where else message
    return f"{where} = {shown(detail['input'])}: {message[0].lower()}{message[1:]}"


def _elsewhere(key: str) -> list[str]:
    """The full names of a value that some section has: ``model.dropout`` for ``dropout``."""
    return [f"{section}.{key}" for section, values in _base().items() if isinstance(values, dict) and key in values]


def _suggest(location: Sequence[str | int]) -> str:
    *sections, key = map(str, location)
    if "." in key and not sections:
        section, _, name = key.partition(".")
        return f": write the section `{section}:` and below it `{name}:`"
    known: Any = _base()
    for section in sections:
        known = known.get(section) if isinstance(known, dict) else None
    if not isinstance(known, dict):  # inside a list
        return ""
    near = _elsewhere(key) or get_close_matches(key, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def uses_cpu_kernels(environment: Mapping[str, str]) -> bool:
    """Whether ``DST_CPU_KERNELS`` leaves the CPU kernels on; ``0`` turns them off.

    Raises:
        ConfigError: The variable is set to another value than 0 and 1.
    """
    switch = environment.get("DST_CPU_KERNELS", "")
    if switch not in ("", "0", "1"):
        raise ConfigError(
            f"the environment variable DST_CPU_KERNELS is {shown(switch)}: set it to 0 to turn the CPU kernels off, "
            "or unset it"
        )
    return switch != "0"
