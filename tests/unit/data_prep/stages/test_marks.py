"""Placeholders, tags and accelerators in the messages of programs."""

from __future__ import annotations

from collections import Counter

import pytest

from data_prep.stages.marks import accelerators, may_have_key, placeholders, without_marks


@pytest.mark.parametrize(("text", "found"), [
    ("%s of %d: %-8.3f, %lu %zu %08d %5s", ["%s", "%d", "%f", "%d", "%d", "%d", "%s"]),
    ("%2$s in %1$s", ["%s", "%s"]),
    ("%(user)s, %'d bytes, %<PRIuMAX>", ["%(user)", "%d", "%<PRIuMAX>"]),
    ("100 %% of 50%ige, 100 %ige, 100% sure, %50'si, 5-%-Hürde", []),
    ("invalid use of %q#T in %qE, %2$qs", ["%T", "%E", "%s"]),
    ("%1 of %2. %L3, %1x%2", ["%1", "%1", "%2", "%2", "%L3"]),
    ("%PRODUCTNAMEを起動 $NAMEの", ["%PRODUCTNAME", "$NAME"]),
    ("{} {0} {name:>10} {not this}", ["{}", "{0}", "{name:>10}"]),
    ("${HOME} $(EXIF_HOUR) $unit.type costs 5$, $US 5, R$reais", ["${HOME}", "$(EXIF_HOUR)", "$unit.type"]),
    ("<b>bold</b> <a href='x'>link</a><br/><nl/>", ["<b>", "</b>", "<a>", "</a>", "<br>", "<nl>"]),
    ("usage: cp <file> <folder>", []),
    ("https://example.org/M%C3%BCnchen%20a and https://%s/", ["%s"]),
    ("Error.~%No file: %ld", ["%d"]),
    ("%B %-d, %H:%M", []), ("%A %e. %b", []), ("Bei %2$L steht %1$s", ["%s"]), ("{a,b} or {c}", ["{c}"]),
])  # fmt: skip
def test_placeholders_and_tags_are_found(text: str, found: list[str]) -> None:
    assert placeholders(text) == Counter(found)


@pytest.mark.parametrize(("text", "found"), [
    ("_File", 1), ("&Öffnen", 1), ("E~xit", 1), ("ファイル(_F)", 1), ("A_ngle", 1), ("R&ight", 1),
    ("Save _As; quit", 1),
    ("La&TeX", 1), ("H_TTP", 1), ("$side_color", 0), ("_閉じます", 1),
    ("&Open/&Close", 2), ("South_Georgia", 0), ("B&W", 0), ("М&М", 0), ("AT&T", 0),
    ("a &amp; b", 0), ("addon_state^Ready", 0), ("クリック&ドラッグ", 0), ("5~10", 0),
    ("~30 Leute", 0), ("this & that", 0),
    ("first_last@x.org", 0), ("https://x.org/a?b&c", 0), ("__init__", 0), ("_emphasis_", 0),
    ("main_a=1 b_c=2 d_e=3", 0),
    ("أ_ضف", 1), ("أغل_ق", 1), ("ا&حفظ", 1), ("ש_מירה", 1), ("เพิ่_ม", 1), ("แ_ก้ไข", 1), ("स_ेवा", 1),
    ("फ_\u200dाइल", 1), ("_\u0301e", 1), ("Вы&ход", 1), ("Έ_ξοδος", 1), ("คัดลอก&วางไว้", 0), ("list_view", 0),
    ("Drag&Drop", 0), ("KP_Begin", 0), ("PD_F", 1), ("<a target='_top'>", 0), ("a &quot b", 0), ("グリッド_線", 0),
    ("Unknown e_x " + 90 * "a", 0),
])  # fmt: skip
def test_the_mark_of_a_key_is_found(text: str, found: int) -> None:
    assert accelerators(text) == found


@pytest.mark.parametrize(("text", "words"), [
    ("適用(_A)", "適用"), ("%d <b>files</b> &amp; _more of {name}", "   files   more of  "), ("Ein Text.", "Ein Text."),
])  # fmt: skip
def test_the_words_of_a_message_are_without_marks(text: str, words: str) -> None:
    assert without_marks(text) == words


@pytest.mark.parametrize("unit", ["%", "%0", "%1$0", "0", "<", "<a ", "_a", "&a", "{", "{a:", "$", "$a.", "~", "%.0"])
def test_a_line_of_a_megabyte_is_read_at_once(unit: str) -> None:
    for text in (unit * (2**20 // len(unit)), "%" + unit * 2**16):
        placeholders(text)
        accelerators(text)
        may_have_key(text)
        without_marks(text)
