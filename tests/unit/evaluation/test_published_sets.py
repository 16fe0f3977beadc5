"""Test sets in the layouts in which they are published, from a folder."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.corpora import TEXT

from dstransformer.cli import main
from dstransformer.errors import DataError, UserError
from dstransformer.evaluation.published_sets import is_published, published_test_set

EN, DE, FR = ["One.", "Two.", "Three."], ["Eins.", "Zwei.", "Drei."], ["Un.", "Deux.", "Trois."]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_records(path: Path, records: list[dict[str, object]]) -> None:
    write(path, [json.dumps(record, ensure_ascii=False) for record in records])


@pytest.fixture
def flores(tmp_path: Path) -> Path:
    for split, lines in (("devtest", 3), ("dev", 2)):
        for code, text in (("eng_Latn", EN), ("deu_Latn", DE), ("zho_Hans", FR), ("zho_Hant", FR)):
            write(tmp_path / "flores200" / split / f"{code}.{split}", text[:lines])
    return tmp_path / "flores200"


@pytest.fixture
def ntrex(tmp_path: Path) -> Path:
    folder = tmp_path / "ntrex"
    write(folder / "NTREX-128" / "newstest2019-src.eng.txt", EN)
    for code, text in (("deu", DE), ("fra", FR), ("fra-CA", DE), ("eng-GB", DE)):
        write(folder / "NTREX-128" / f"newstest2019-ref.{code}.txt", text)
    write(folder / "README.md", ["NTREX"])
    return folder


@pytest.fixture
def wmt24pp(tmp_path: Path) -> Path:
    records: list[dict[str, object]] = [
        {"lp": "en-de_DE", "domain": "canary", "is_bad_source": True, "source": "CANARY", "target": "CANARY"},
        {"lp": "en-de_DE", "domain": "news", "is_bad_source": False, "source": EN[0], "target": DE[0]},
        {"lp": "en-de_DE", "domain": "speech", "is_bad_source": False, "source": "Two.\nMore.", "target": DE[1]},
    ]
    for code in ("de_DE", "ar_EG", "ar_SA"):
        write_records(tmp_path / "wmt24pp" / f"en-{code}.jsonl", records)
    return tmp_path / "wmt24pp"


class TestFlores:
    def test_devtest_is_read_unless_dev_is_named(self, flores: Path) -> None:
        found = published_test_set(f"flores200:{flores}", "en-de")
        assert (found.name, found.sources, found.references) == ("flores200 eng_Latn-deu_Latn", tuple(EN), tuple(DE))
        assert (found.src, found.ref) == tuple(f"{flores}/devtest/{code}.devtest" for code in ("eng_Latn", "deu_Latn"))
        dev = published_test_set(f"flores200/dev:{flores}", "deu_Latn-eng_Latn")
        assert (dev.name, dev.sources) == ("flores200/dev deu_Latn-eng_Latn", tuple(DE[:2]))
        assert published_test_set(f"flores200:{flores / 'devtest'}", "en-de") == found
        assert published_test_set(f"flores200:{flores}", "en-zh-TW").name == "flores200 eng_Latn-zho_Hant"

    @pytest.mark.parametrize("kind", ["jsonl", "parquet"])
    def test_the_records_of_flores_plus_are_read_in_the_order_of_their_ids(self, tmp_path: Path, kind: str) -> None:
        for code, text in (("eng_Latn", EN), ("deu_Latn", DE[::-1])):
            ids = [2, 1, 0] if text is not EN else [0, 1, 2]
            rows: list[dict[str, object]] = [
                {"id": number, "iso_639_3": code[:3], "text": line} for number, line in zip(ids, text, strict=True)
            ]
            path = tmp_path / "devtest" / f"{code}.{kind}"
            if kind == "jsonl":
                write_records(path, rows)
            else:
                path.parent.mkdir(exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows), path)
        found = published_test_set(f"flores200:{tmp_path}", "en-de")
        assert (found.sources, found.references) == (tuple(EN), tuple(DE))

    def test_records_with_other_ids_do_not_belong_together(self, tmp_path: Path) -> None:
        for code, first in (("eng_Latn", 1), ("deu_Latn", 2)):
            rows: list[dict[str, object]] = [{"id": first + place, "text": line} for place, line in enumerate(EN)]
            write_records(tmp_path / "devtest" / f"{code}.jsonl", rows)
        with pytest.raises(DataError, match="id is 1"):
            published_test_set(f"flores200:{tmp_path}", "en-de")

    def test_bad_records_are_refused(self, tmp_path: Path) -> None:
        write_records(tmp_path / "devtest" / "eng_Latn.jsonl", [{"id": 0, "text": "One."}, {"id": 0, "text": "Two."}])
        write_records(tmp_path / "devtest" / "deu_Latn.jsonl", [{"id": 0, "text": 5}])
        (tmp_path / "devtest" / "fra_Latn.jsonl").write_text("{", encoding="utf-8")
        write(tmp_path / "devtest" / "ita_Latn.jsonl", ["[]"])
        for pair, message in (
            ("en-de", "eng_Latn.jsonl: its records need a different id each"),
            ("de-en", "deu_Latn.jsonl, line 1: text is 5, not a text"),
            ("fr-en", "fra_Latn.jsonl, line 1: not a JSON object"),
            ("it-en", "ita_Latn.jsonl, line 1: not a JSON object"),
        ):
            with pytest.raises(DataError, match=message):
                published_test_set(f"flores200:{tmp_path}", pair)

    def test_a_damaged_parquet_file_is_refused(self, tmp_path: Path) -> None:
        for code in ("eng_Latn", "deu_Latn"):
            write(tmp_path / "devtest" / f"{code}.parquet", ["PAR1"])
        with pytest.raises(DataError, match=r"eng_Latn.parquet"):
            published_test_set(f"flores200:{tmp_path}", "en-de")


def test_ntrex_is_read_in_any_direction(ntrex: Path) -> None:
    found = published_test_set(f"ntrex:{ntrex}", "en-de")
    assert (found.name, found.sources, found.references) == ("ntrex eng-deu", tuple(EN), tuple(DE))
    assert published_test_set(f"ntrex:{ntrex / 'NTREX-128'}", "de-en").sources == tuple(DE)
    assert published_test_set(f"ntrex:{ntrex}", "de-fr-CA").name == "ntrex deu-fra-CA"
    assert published_test_set(f"ntrex:{ntrex}", "fr-de").sources == tuple(FR)


def test_bouquet_is_read_in_any_direction(tmp_path: Path) -> None:
    """Each file is a language, translated to English; its sentences are told by their ids, in any order."""
    texts = {"eng_Latn": EN, "deu_Latn": DE, "por_Latn_braz1246": FR}
    for split, code in product(("test", "dev"), texts):
        rows = [
            {"level": "sentence_level", "uniq_id": f"P{number:03}-S1", "src_lang": code, "src_text": line,
             "tgt_lang": "eng_Latn", "tgt_text": english}
            for number, line, english in zip(range(3), texts[code], EN, strict=True)
        ]  # fmt: skip
        path = tmp_path / "data" / "sentence_level" / split / f"{code}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_pylist(rows[:: -1 if code == "deu_Latn" else 1][: 2 if split == "dev" else 3]), path
        )
    found = published_test_set(f"bouquet:{tmp_path}", "de-pt")
    assert (found.name, found.sources) == ("bouquet deu_Latn-por_Latn_braz1246", tuple(DE))
    assert found.references == tuple(FR)
    assert published_test_set(f"bouquet:{tmp_path}", "en-de").sources == tuple(EN)
    with pytest.raises(DataError, match="uniq_id is P000-S1"):
        published_test_set(f"bouquet/dev:{tmp_path}", "en-de")
    with pytest.raises(UserError, match=r"'train'.*test and dev"):
        published_test_set(f"bouquet/train:{tmp_path}", "en-de")
    with pytest.raises(DataError, match="data/sentence_level"):
        published_test_set(f"bouquet:{tmp_path / 'data'}", "en-de")


def test_wmt24pp_leaves_bad_sources_out(wmt24pp: Path) -> None:
    found = published_test_set(f"wmt24pp:{wmt24pp}", "en-de")
    assert (found.name, found.sources, found.references) == ("wmt24pp en-de_DE", (EN[0], "Two. More."), tuple(DE[:2]))


def test_what_cannot_be_read_is_refused(flores: Path, ntrex: Path, wmt24pp: Path, tmp_path: Path) -> None:
    write(flores / "devtest" / "fra_Latn.devtest", FR[:2])
    (tmp_path / "empty").mkdir()
    for name, pair, message in (
        ("flores200:", "en-de", "--test-set flores200:: name the folder of the set, flores200:DIR"),
        (f"ntrex:{tmp_path}/gone", "en-de", "gone is not a folder; download the set"),
        (f"flores200/test:{flores}", "en-de", "flores200 has no split 'test'; it has devtest and dev"),
        (f"ntrex/dev:{ntrex}", "en-de", "ntrex has no split 'dev'$"),
        (f"flores200:{flores}", "en-ru", "devtest has no text in ru; it has deu_Latn, eng_Latn, fra_Latn, zho_Hans"),
        (f"flores200:{flores}", "en-fr", "eng_Latn.devtest has 3 lines but .*fra_Latn.devtest has 2: line n"),
        (f"flores200:{flores}", "en", "--langpair 'en': name two languages, such as en-de"),
        (f"flores200:{flores}", "en-eng", "--langpair en-eng: both are eng_Latn"),
        (f"flores200:{ntrex}", "en-de", "is not of FLORES-200: it has no file such as eng_Latn.devtest"),
        (f"flores200:{tmp_path}/empty", "en-de", "empty/devtest is not of FLORES-200"),
        (f"ntrex:{flores}", "en-de", "is not of NTREX-128: it has no file such as newstest2019-src.eng.txt"),
        (f"wmt24pp:{flores}", "en-de", r"is not of WMT24\+\+: it has no file such as en-de_DE.jsonl"),
        (f"wmt24pp:{wmt24pp}", "en-ar", "several texts in ar: ar_EG, ar_SA; name one of these codes"),
        (f"wmt24pp:{wmt24pp}", "de-en", r"WMT24\+\+ translates from en, not from de_DE; into ar_EG, ar_SA, de_DE"),
    ):
        with pytest.raises(UserError, match=message):
            published_test_set(name, pair)


def test_bad_records_of_wmt24pp_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "en-de_DE.jsonl"
    for record, message in (
        ({"source": "a"}, "line 1: target is None, not a text"),
        ({"source": "a", "target": "b", "is_bad_source": "no"}, "line 1: is_bad_source is 'no', not true or false"),
        ({"source": "a", "target": "b", "is_bad_source": True}, "has no sentence whose source is not marked as bad"),
    ):
        write_records(path, [dict(record)])
        with pytest.raises(DataError, match=message):
            published_test_set(f"wmt24pp:{tmp_path}", "en-de")


def test_names_of_sacrebleu_are_not_taken_for_folders() -> None:
    assert not any(map(is_published, ("wmt14", "wmt14/full", "ntrex", "mtnt1.1/test")))
    assert all(map(is_published, ("ntrex:x", "flores200/dev:x", "wmt24pp:/a:b")))


def test_a_bundle_is_evaluated_on_a_set_in_a_folder(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "ntrex" / "newstest2019-src.eng.txt", TEXT)
    write(tmp_path / "ntrex" / "newstest2019-ref.deu.txt", [line.upper() for line in TEXT])
    assert main(["evaluate", str(bundle), "--test-set", f"ntrex:{tmp_path / 'ntrex'}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test_set"]["name"] == "ntrex eng-deu"
    assert found["test_set"]["ref"] == str(tmp_path / "ntrex" / "newstest2019-ref.deu.txt")
    assert found["signatures"]["bleu"].startswith("nrefs:1|")
