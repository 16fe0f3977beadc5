"""Message catalogues of gettext as a source of pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.sources.messages import iter_messages
from data_prep.sources.texts import local_text
from dstransformer.errors import DataError

polib = pytest.importorskip("polib", reason="needs polib: pip install 'dstransformer[po]'")

CATALOGUE = r"""
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Language: de_DE\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

msgctxt "menu"
msgid "_Open …"
msgstr "_Öffnen …"

msgid "Two\n"
"lines\n"
msgstr "Zwei\nZeilen\n"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

msgid "Not translated"
msgstr ""

#, fuzzy
msgid "Close"
msgstr "Öffnen"

#~ msgid "Old"
#~ msgstr "Alt"
"""

PAIRS = [
    ("_Open …", "_Öffnen …"), ("Two lines", "Zwei Zeilen"), ("%d file", "%d Datei"), ("%d files", "%d Dateien"),
]  # fmt: skip


def pairs(path: Path, src: str = "en", tgt: str = "de") -> list[tuple[str, str]]:
    return list(iter_messages(local_text(path), src, tgt))


def test_translated_messages_are_pairs_in_both_formats_and_directions(tmp_path: Path) -> None:
    source, compiled = tmp_path / "program.po", tmp_path / "program.mo"
    source.write_text(CATALOGUE, encoding="utf-8")
    polib.pofile(str(source)).save_as_mofile(str(compiled))
    assert pairs(source) == PAIRS
    assert sorted(pairs(compiled, "eng", "deu")) == sorted(PAIRS)
    assert pairs(source, "de", "en") == [(tgt, src) for src, tgt in PAIRS]


def test_one_plural_form_translates_the_plural(tmp_path: Path) -> None:
    path = tmp_path / "ja.po"
    path.write_text(
        'msgid ""\nmsgstr "Language: ja\\nContent-Type: text/plain; charset=EUC-JP\\n"\n\n'
        'msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d 個のファイル"\n',
        encoding="euc-jp",
    )
    assert pairs(path, "en", "ja") == [("%d files", "%d 個のファイル")]


ARABIC = "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 && n%100<=99 ? 4 : 5"


@pytest.mark.parametrize(("language", "header", "forms", "singular", "plural"), [
    ("ar", f"nplurals=6; plural={ARABIC};", 6, 1, 3), ("ar", "", 6, 1, 3),
    ("ar", "nplurals=INTEGER; plural=EXPRESSION;", 6, 1, 3), ("ar", "nplurals=2; plural=n/0;", 6, 1, 3),
    ("sl", "nplurals=4; plural=n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0;", 4, 1, 0),
    ("sl", "", 4, 0, 3), ("lv", "nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2", 3, 0, 1),
    ("ru", "nplurals=4; plural=n==1 ? 3 : n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 ? 1 : 2;", 4, 3, 2),
    ("ga", "", 5, 0, 2), ("fr", "", 2, 0, 1), ("pt_BR", "", 2, 0, 1), ("tlh", "", 2, 0, 1),
    ("ru", "nplurals=1; plural=__import__('os').abort()", 3, 0, 2), ("ja", "nplurals=1; plural=0;", 1, None, 0),
])  # fmt: skip
def test_one_thing_and_several_have_the_forms_that_the_formula_says(
    language: str, header: str, forms: int, singular: int | None, plural: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.po"
    lines = "".join(f'msgstr[{form}] "form {form}"\n' for form in range(forms))
    stated = f"Plural-Forms: {header}\\n" if header else ""
    path.write_text(
        f'msgid ""\nmsgstr "Language: {language}\\n{stated}"\n\nmsgid "1 Item"\nmsgid_plural "Items"\n{lines}',
        encoding="utf-8",
    )
    found = dict(pairs(path, "en", language))
    assert found == {"Items": f"form {plural}"} | ({} if singular is None else {"1 Item": f"form {singular}"})


def test_a_catalogue_without_a_language_tells_it_by_its_place(tmp_path: Path) -> None:
    text = CATALOGUE.replace('"Language: de_DE\\n"\n', "")
    (tmp_path / "c.po").write_text(CATALOGUE.replace("de_DE", "de.UTF-8\\nX-Source-Language: C"), encoding="utf-8")
    assert pairs(tmp_path / "c.po") == PAIRS
    for place in ("de/LC_MESSAGES/a.po", "de@informal/LC_MESSAGES/a.po"):
        path = tmp_path / place
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        assert pairs(path) == PAIRS
    path = tmp_path / "a.po"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"a.po .*'Language: de\\n'"):
        pairs(path)


@pytest.mark.parametrize(("content", "name", "message"), [
    (CATALOGUE.replace("de_DE", "fr"), "a.po", "a.po translates from en into fr, not from en into de"),
    (CATALOGUE.replace("Language: de_DE", "X-Source-Language: sv\\nLanguage: de"), "a.po", "from sv into de, not from"),
    ("msgid\n", "a.po", "a.po is not a catalogue of gettext, or damaged (Syntax error"),
    ("what?", "a.mo", "a.mo is not a catalogue of gettext, or damaged ("),
    ("", "a.mo", "a.mo is not a catalogue of gettext, or damaged ("),
])  # fmt: skip
def test_other_files_are_refused(content: str, name: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        pairs(path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_compiled_catalogue_that_was_cut_is_refused(tmp_path: Path) -> None:
    compiled = tmp_path / "a.mo"
    polib.pofile(CATALOGUE).save_as_mofile(str(compiled))
    whole = compiled.read_bytes()
    for cut in range(0, len(whole) - 1, 7):
        compiled.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=rf"^{compiled} [^\n]*$"):
            pairs(compiled)
