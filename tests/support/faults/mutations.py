"""Hypothesis strategies for damaged files: bytes flipped, cut and repeated, values of the wrong type and size."""

from __future__ import annotations

import copy
import gzip
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any

import yaml
from hypothesis import strategies as st


@dataclass(frozen=True)
class Change:
    """A file and its new content; ``mend`` asks for the hashes of other files to be made right."""

    name: str
    content: bytes
    mend: bool

    def __repr__(self) -> str:
        return f"{self.name}, {len(self.content)} bytes: {self.content[:200]!r}{', hashes made right' * self.mend}"


#: Contents in place of a whole file.
WHOLE = [
    b"", b"\0" * 300, b"[]", b"null", b"{}", b"7", b'"text"', b"[" * 100_000, b'{"a":' * 20_000, b"(" * 50_000, b"NaN",
    b"1" * 6_000, b"\xff\xfe\x00", b"\xef\xbb\xbf{}", b"\x1f\x8b", b"a: &a [*a]", b"- " * 3_000, b"\n" * 1_000,
    b"a: &a [1,1,1,1,1,1,1,1]\n" + b"".join(
        b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 8)) for n in range(12)),
]  # fmt: skip

HUGE = [2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**40, 10**299, 10**5000]

#: Texts in place of a value: ways out of a folder, unprintable characters, other types in disguise.
TEXTS = [
    "", ".", "..", "../../etc/passwd", "/etc/passwd", "a/../../b", "a\0b", "\x1b[31m", "\ud800", "x" * 300, "ä" * 200,
    "x" * 5_000, "1e999", "\n", "%s%s%n", "{0.__class__}", "[red]x[/", "step-99999999", "sqlite:///x", "***",
]  # fmt: skip


def deep(levels: int) -> Any:
    """Lists within each other."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 0.5, -0.0, float("nan"), float("inf"), -1e308, 1e-320, [], {}, [[]]]),
    st.sampled_from(HUGE),
    st.sampled_from(HUGE).map(lambda number: -number),
    st.sampled_from(TEXTS),
    st.sampled_from([50, 200, 900]).map(deep),
    st.integers(),
    st.text(max_size=20),
    st.lists(st.integers(-5, 5), max_size=4),
)

STRUCTURED = (".json", ".jsonl", ".yaml", ".safetensors")


@st.composite
def changes(draw: st.DrawFn, files: dict[str, bytes], *, mendable: bool) -> Change:
    """A change of one of the files."""
    name = draw(st.sampled_from(sorted(files)))
    content, suffix = files[name], PurePath(name).suffix
    if suffix in STRUCTURED and draw(st.integers(0, 3)):
        changed = draw(structured(content, suffix))
    else:
        zipped = suffix == ".gz" and draw(st.booleans())
        changed = draw(damaged(gzip.decompress(content) if zipped else content))
        changed = gzip.compress(changed, 1) if zipped else changed
    return Change(name, changed, mendable and draw(st.booleans()))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes flipped, cut off, left out, repeated, inserted, overwritten, or all replaced."""
    if not content:
        return draw(st.binary(max_size=50))
    at = draw(st.integers(0, len(content) - 1))
    begin, some, end = content[:at], content[at : at + (many := draw(st.integers(1, 200)))], content[at + many :]
    number = struct.pack("<Q", draw(st.sampled_from([0, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, 2**64 - 8])))
    flipped = bytearray(content)
    for place in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        flipped[place] ^= draw(st.integers(1, 255))
    variants = [
        bytes(flipped),
        begin,
        begin + end,
        begin + some * draw(st.sampled_from([2, 3, 1_000])) + end,
        begin + draw(st.binary(max_size=40)) + some + end,
        begin + number + content[at + 8 :],
        draw(st.sampled_from(WHOLE)),
        draw(st.binary(max_size=200)),
    ]
    return draw(st.sampled_from(variants))


@st.composite
def structured(draw: st.DrawFn, content: bytes, suffix: str) -> bytes:
    """A value replaced, removed, renamed or repeated in JSON, in a line of JSON lines, in YAML or in a header."""
    if suffix == ".jsonl":
        lines = content.splitlines(keepends=True)
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = draw(structured(lines[number], ".json")) + b"\n"
        return b"".join(lines)
    if suffix == ".safetensors":
        size = struct.unpack("<Q", content[:8])[0]
        header = draw(structured(content[8 : 8 + size], ".json"))
        return struct.pack("<Q", len(header)) + header + content[8 + size :]
    tree = copy.deepcopy(_parsed(content, suffix))
    for _ in range(draw(st.integers(1, 2))):
        draw(_edit(tree))
    if suffix == ".yaml":
        try:
            return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")
        except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: a number of 5,000 digits
            suffix = ".json"
    text = _json_text(tree)
    if draw(st.integers(0, 9)) == 0 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + "," + text[1:]  # every key twice
    return text.encode("utf-8", "surrogatepass")


@cache
def _parsed(content: bytes, suffix: str) -> Any:
    return yaml.safe_load(content) if suffix == ".yaml" else json.loads(content)


@st.composite
def _edit(draw: st.DrawFn, tree: Any) -> None:
    places = list(_places(tree))
    if not places:
        return
    whole, key = draw(st.sampled_from(places))
    match draw(st.integers(0, 5)):
        case 0:
            del whole[key]
        case 1 if isinstance(whole, dict):
            whole[draw(st.sampled_from(TEXTS))] = whole.pop(key)
        case 2:
            other, name = draw(st.sampled_from(places))
            whole[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else other[name])
        case _:
            whole[key] = draw(VALUES)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > 12:
        return
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key], depth + 1)


def _json_text(value: Any) -> str:
    """As ``json.dumps``, which refuses no number; whole numbers may be longer than Python converts."""
    try:
        return json.dumps(value, ensure_ascii=True)
    except ValueError:
        return json.dumps(_spelled(value), ensure_ascii=True).replace('"<', "").replace('>"', "")


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spelled(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_spelled(part) for part in value]
    if type(value) is int and abs(value) >= 10**4000:
        return f"<{'-' if value < 0 else ''}1{'0' * 5000}>"
    return value
