"""Placeholders, tags and accelerators in the messages of programs."""

from __future__ import annotations

from collections import Counter

import pytest

from data_prep.stages.marks import accelerators, placeholders


@pytest.mark.parametrize(("text", "found"), [
    ("%s of %d: %-8.3f, %lu %zu", ["%s", "%d", "%f", "%d", "%d"]),
    ("%2$s in %1$s", ["%s", "%s"]),
    ("%(count)i files, %'d bytes", ["%d", "%d"]),
    ("100 %% of 50%ige, 100% sure", []),
    ("invalid use of %q#T in %qE", ["%T", "%E"]),
    ("%1 of %2. %L1x", ["%1", "%2", "%L1"]),
    ("%PRODUCTNAMEを起動 $NAMEの", ["%PRODUCTNAME", "$NAME"]),
    ("{} {0} {name} {not this}", ["{}", "{0}", "{name}"]),
    ("${HOME} $(EXIF_HOUR) $unit.type costs 5$", ["${HOME}", "$(EXIF_HOUR)", "$unit.type"]),
    ("<b>bold</b> <a href='x'>link</a><br/>", ["<b>", "<a>", "<br>"]),
    ("usage: cp <file> <folder>", []),
    ("Error.~%No file: %Ld %ld", ["%d", "%d"]),
])  # fmt: skip
def test_placeholders_and_tags_are_found(text: str, found: list[str]) -> None:
    assert placeholders(text) == Counter(found)


@pytest.mark.parametrize(("text", "found"), [
    ("_File", "_"), ("&Öffnen", "&"), ("E~xit", "~"), ("ファイル(_F)", "_"), ("A_ngle", "_"), ("R&ight", "&"),
    ("La&TeX", "&"), ("_閉じます", "_"), ("South_Georgia", ""), ("B&W", ""), ("AT&T", ""), ("a &amp; b", ""),
    ("addon_state^Ready", ""), ("クリック&ドラッグ", ""), ("5~10", ""), ("this & that", ""),
])  # fmt: skip
def test_the_mark_of_a_key_is_found(text: str, found: str) -> None:
    assert accelerators(text) == Counter(found)
