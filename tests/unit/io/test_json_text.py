from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, PositiveInt

from dstransformer.errors import DataError, NewerFormatError, UnreadableError
from dstransformer.io import json_text
from dstransformer.io.json_text import MAX_DEPTH, JsonError, parse_json, read_json, read_record

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**290), 10**290) | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(VALUES, st.booleans())
def test_what_python_writes_is_read(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value


#: What these parse does not come from a file: answers of MLflow and of child processes, and what they wrote themselves.
OTHERS = {
    "distributed/supervision/heartbeat", "decoding/parts", "evaluation/learned", "evaluation/learned_script",
    "extras/paper/table3",
    "tracking/mlflow/models", "tracking/mlflow/store",
}  # fmt: skip


def test_every_json_file_is_read_within_bounds() -> None:
    root = Path(json_text.__file__).parents[1]
    sources = [*root.rglob("*.py"), *(root.parent / "data_prep").rglob("*.py")]
    found = {path for path in sources if re.search(r"json\.loads?\(|model_validate_json\(.*read", path.read_text())}
    assert found == {root / f"{name}.py" for name in OTHERS}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(("text", "complaint"), [
    ("", "Expecting value: line 1 column 1 (char 0)"),
    ('{"a": 1,\n "b": {"c": 1, "c": 2}}', "repeated key 'c': state it once"),
    ("[NaN]", "NaN is not a JSON number"),
    (nested(MAX_DEPTH + 1), "it is nested more than 64 deep"),
    (nested(500), "it is nested more than 64 deep"),
    ("[" * 100_000, "it is nested more than 64 deep"),
    ('{"a":' * 100_000, "it is nested more than 64 deep"),
    ('["\\ud800"]', r"'\ud800' is a lone surrogate"),
    (b'"\xff"', "byte 2: not UTF-8; convert it"),
])  # fmt: skip
def test_what_is_no_json_or_beyond_a_bound_is_refused_in_one_line(text: str | bytes, complaint: str) -> None:
    with pytest.raises(JsonError) as caught:
        parse_json(text)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_bounds_are_inclusive() -> None:
    assert parse_json(nested(MAX_DEPTH)) == eval(nested(MAX_DEPTH))
    assert parse_json("[" * MAX_DEPTH + "7" + "]" * MAX_DEPTH)
    assert parse_json("7") == 7
    assert parse_json("[" + "[]," * 1000 + "[]]") == [[]] * 1001  # wide, not deep
    assert math.isnan(parse_json("NaN", nan=True))


def test_a_file_is_measured_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]
    monkeypatch.setattr(json_text, "MAX_BYTES", 5)
    with pytest.raises(OSError, match="the 5 bytes"):
        read_json(path)
    with pytest.raises(OSError, match="it is not a file"):
        read_json(Path("/dev/zero"))


class Size(BaseModel):
    width: PositiveInt


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"is damaged \(Expecting .*\): copy it again"),
        ("[]", r"is damaged \(it is not a JSON object\): copy it again"),
        ('{"format_version": "2"}', "its format version is '2'"),
        ("{}", "its format version is None"),
        ('{"format_version": 2}', r"is damaged \(it lacks the key 'size'\): copy it again"),
        ('{"format_version": 2, "size": 3}', r"is damaged \(Input should be .*\): copy it again"),
        ('{"format_version": 1, "size": {"width": -1}}', r"is damaged \(width: Input .* 0, found -1\): copy it again"),
    ],
)
def test_every_failure_of_a_record_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as raised:
        read_record(path, lambda record: Size.model_validate(record["size"]), newest=2, advice="copy it again")
    assert str(raised.value).startswith(f"{path} ")
    assert "\n" not in str(raised.value)


def test_a_record_of_a_newer_format_is_refused_by_name_and_an_older_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"format_version": 3}')
    with pytest.raises(NewerFormatError, match=r"record\.json .*3, .*2"):
        read_record(path, dict, newest=2)
    path.write_text('{"format_version": 1, "a": NaN}')
    assert read_record(path, len, newest=2, nan=True) == 2


def test_a_record_that_cannot_be_read_and_a_check_that_comes_before_the_version(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json: No such file"):
        read_record(tmp_path / "absent.json", dict)
    with pytest.raises(DataError, match="Is a directory") as raised:
        read_record(tmp_path, dict)
    assert not isinstance(raised.value, UnreadableError), "it will not become a file"

    def refuse(_: dict[str, Any]) -> None:
        raise DataError("another kind of file")

    (tmp_path / "record.json").write_text('{"format_version": 9}')
    with pytest.raises(DataError, match="another kind of file"):
        read_record(tmp_path / "record.json", dict, newest=1, check=refuse)
