"""``dst export hf`` against transformers: the same logits, the same tokens, nearly the same beam search."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data.corpora import TEXT, train_model
from support.models.packed import model_logits
from support.models.random_bundle import random_bundle
from transformers import AutoTokenizer, MarianMTModel

from dstransformer.config import load_config
from dstransformer.data import BOS_ID, EOS_ID, Tokenizer
from dstransformer.decoding import Translator, length_penalty
from dstransformer.errors import DataError, UserError
from dstransformer.exchange.hf_export import FILES, TARGET_FILES, export_hf
from dstransformer.exchange.hf_tokenizer import tokenizer_json
from dstransformer.model import open_bundle, save_bundle

#: Text that tokenizers get wrong: odd spaces, control and invisible characters, what looks like special pieces.
ODD = [
    "", " ", "  two  spaces ", "tab\tand\u2028line", "zero\u200bwidth", "a </s> b <unk> <0x41>", ">>de<< word",
    "ﬁne ① Å Ｆｕｌｌ", "한국어 日本語", "🙂 unseen", "▁ block", "e\u0301 é", "x" * 300,
]  # fmt: skip


@pytest.fixture(scope="session")
def exported(shared_folder: Callable[[str, Callable[[Path], object]], Path], trained: Path) -> Path:
    return shared_folder("export-hf", lambda folder: export_hf(trained, folder))


@torch.no_grad()
def logits_of(bundle: Path, exported: Path, src: str, tgt: str) -> tuple[torch.Tensor, torch.Tensor]:
    opened = open_bundle(bundle)
    source = torch.tensor([*opened.tokenizer.src.encode([src])[0], EOS_ID])
    target = torch.tensor([BOS_ID, *opened.tokenizer.encode([tgt])[0]])
    theirs, report = MarianMTModel.from_pretrained(exported, output_loading_info=True)
    assert not any(report.values()), "no weight is missing, unexpected or of another shape"
    ours = model_logits(opened.build_model(), [(source, target)])
    return ours, theirs.eval()(input_ids=source[None], decoder_input_ids=target[None]).logits[0]


def test_a_trained_model_has_the_same_logits(trained: Path, exported: Path, learned: list[str]) -> None:
    ours, theirs = logits_of(trained, exported, learned[0], "der Hund sieht eine Katze")
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("changes", [
    {"tie_embeddings": "target"},
    {"tie_embeddings": "none", "attention_bias": True},
    {"d_k": 4, "d_v": 6},
    {"num_layers": 1},
    {"encoder_layers": 3, "decoder_layers": 1},
    {"activation": "gelu"},
    {"activation": "swish", "attention_bias": True, "output_bias": True},
])  # fmt: skip
def test_other_architectures_have_the_same_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    bundle = random_bundle(tmp_path / "bundle", **changes)
    export_hf(bundle, tmp_path / "hf")
    ours, theirs = logits_of(bundle, tmp_path / "hf", TEXT[0], TEXT[3])
    assert (ours - theirs).abs().max() < 1e-4


def of_each_language(tie: str, folder: Path) -> tuple[Path, Tokenizer]:
    """A bundle whose target has more pieces than its source, in ``folder``, and its tokenizer."""
    source = Tokenizer(train_model(TEXT[::2], vocab_size=290, model_type="unigram"))
    tokenizer = Tokenizer(train_model(TEXT[1::2]), src=source)
    return random_bundle(folder, tokenizer, tie_embeddings=tie), tokenizer


@pytest.mark.parametrize("tie", ["target", "none"])
def test_a_vocabulary_for_each_language_has_the_same_logits(tmp_path: Path, tie: str) -> None:
    bundle, tokenizer = of_each_language(tie, tmp_path / "bundle")
    export_hf(bundle, tmp_path / "hf")
    ours, theirs = logits_of(bundle, tmp_path / "hf", TEXT[0], TEXT[3])
    assert (ours - theirs).abs().max() < 1e-4
    assert ours.shape[1] == 352
    model = MarianMTModel.from_pretrained(tmp_path / "hf").eval()
    assert (model.get_input_embeddings().num_embeddings, model.get_output_embeddings().out_features) == (304, 352)
    tied = model.get_output_embeddings().weight is model.model.decoder.embed_tokens.weight
    assert (tied, open_bundle(bundle).tokenizer.identity) == (tie == "target", tokenizer.identity)
    source, target = both_tokenizers(tmp_path / "hf")
    with torch.no_grad():
        loss = model(**source([TEXT[0]], return_tensors="pt"), labels=target([TEXT[3]], return_tensors="pt").input_ids)
    labels = torch.tensor([*tokenizer.encode([TEXT[3]])[0], EOS_ID])
    torch.testing.assert_close(loss.loss, torch.nn.functional.cross_entropy(ours, labels), rtol=1e-4, atol=1e-4)


def both_tokenizers(exported: Path) -> tuple[Any, Any]:
    return AutoTokenizer.from_pretrained(exported), AutoTokenizer.from_pretrained(exported, subfolder="target")


def test_each_language_has_its_own_tokens(tmp_path: Path) -> None:
    bundle, tokenizer = of_each_language("none", tmp_path / "bundle")
    export_hf(bundle, tmp_path / "hf")
    texts = [*TEXT, *ODD]
    for own, theirs in zip((tokenizer.src, tokenizer), both_tokenizers(tmp_path / "hf"), strict=True):
        ids = own.encode(texts)
        assert theirs(texts)["input_ids"] == [[*row, EOS_ID] for row in ids]
        assert theirs.batch_decode(own.encode(TEXT), skip_special_tokens=True) == own.decode(own.encode(TEXT))
    found = [path.relative_to(tmp_path / "hf").as_posix() for path in (tmp_path / "hf").rglob("*") if path.is_file()]
    assert sorted(found) == sorted((*FILES, *TARGET_FILES))
    unlike = Tokenizer(train_model(user_defined_symbols=["x<s>"]), src=tokenizer.src)
    with pytest.raises(DataError, match=r"target tokenizer .*symbol"):
        export_hf(random_bundle(tmp_path / "other", unlike, tie_embeddings="none"), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("least", [0, 12])
def test_the_least_length_is_ours(tmp_path: Path, learned: list[str], least: int) -> None:
    config = load_config("base", [f"decoding.min_tokens={least}", "decoding.beam_size=1"])
    opened = open_bundle(random_bundle(tmp_path / "random"))
    changed = config.model_copy(update={"model": opened.model})
    weights = opened.load_weights()
    weights["decoder.1.feed_forward_residual.norm.bias"] = 100 * weights["embedding.weight"][EOS_ID]  # it ends at once
    save_bundle(tmp_path / "bundle", weights, changed, opened.tokenizer, {"step": 0})
    export_hf(tmp_path / "bundle", tmp_path / "hf")
    model, tokenizer = (kind.from_pretrained(tmp_path / "hf") for kind in (MarianMTModel, AutoTokenizer))
    with torch.inference_mode():
        found = model.generate(**tokenizer(learned[:4], return_tensors="pt", padding=True), max_length=30)
    ours = Translator.load(tmp_path / "bundle").search(learned[:4])
    assert [row.index(EOS_ID) - 1 for row in found.tolist()] == [len(one.tokens) for (one,) in ours]
    assert min(len(one.tokens) for (one,) in ours) == least


@pytest.mark.slow
def test_the_code_on_the_card_chooses_as_beam_search_does(
    trained: Path, exported: Path, learned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentences = learned[:100]
    code = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(exported)
    printed: list[list[str]] = []
    names: dict[str, Any] = {"print": printed.append}
    with torch.inference_mode():
        exec("\n".join(code).replace('["A sentence.", "Another one."]', repr(sentences)), names)
    names |= {"sequences": names["found"].sequences, "theirs": names["found"].sequences_scores}
    expected = Translator.load(trained).translate(sentences)
    plain, rescored = (sum(map(str.__eq__, texts, expected)) for texts in printed)
    assert rescored >= max(plain, 0.95 * len(sentences))
    alpha, power = open_bundle(trained).decoding.length_penalty, names["power"]
    for ids, theirs, ours in zip(*(names[name].tolist() for name in ("sequences", "theirs", "scores")), strict=True):
        length = ids.index(EOS_ID)  # without the begin, with the end
        assert ours == pytest.approx(theirs * length**power / length_penalty(length, alpha), rel=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"model_type": "unigram", "vocab_size": 320}, {"byte_fallback": False, "vocab_size": 70}]
)
def test_the_tokens_are_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    tokenizer = Tokenizer(train_model(**options))
    export_hf(random_bundle(tmp_path / "bundle", tokenizer), tmp_path / "hf")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [*TEXT, *ODD]
    ids = tokenizer.encode(texts)
    assert theirs(texts)["input_ids"] == [[*row, EOS_ID] for row in ids]
    plain = [text for text in TEXT if "ß" not in text]
    assert theirs.batch_decode(tokenizer.encode(plain), skip_special_tokens=True) == plain


#: Symbols as tags of sources and users have them, and one that holds another.
SYMBOLS = ["\u2581<bt>", "<bt>", "<ph1>", "<unk-name>", "(<ph1>)", "@", "x.y*z", "🙂"]

#: Where symbols are easily lost.
MARKED = [
    "<bt> Two men are talking.", "<bt>", "<ph1>", " <bt>  <bt>", "a <bt> b<bt>c <bt", "front <ph1>,<unk-name> <ph1 >",
    "the<ph1>dog<ph1><ph1>", "(<ph1>) ((<ph1>) (<ph1>", "me@here.com @ @@", "x.y*z xay*z x.y*", "🙂 und 🙂🙂, ß🙂ß",
    "<ph1></s> <ph1><unk><0x41> <ph1><pad> </s>", "< ph1> ＜ph1＞ <p\u200bh1>", "<BT> <PH1> \u2581<bt>x",
    "<unk-name>" * 20,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tags_and_symbols_are_the_same(tmp_path: Path, kind: str) -> None:
    tokenizer = Tokenizer(train_model([*TEXT, *MARKED], model_type=kind, vocab_size=345, user_defined_symbols=SYMBOLS))
    bundle = random_bundle(tmp_path / "bundle", tokenizer)
    export_hf(bundle, tmp_path / "hf")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [*TEXT, *ODD, *MARKED, *(f"{one}{other}" for one in MARKED for other in MARKED)]
    ids = tokenizer.encode(texts)
    assert theirs(texts)["input_ids"] == [[*row, EOS_ID] for row in ids]
    assert set(tokenizer.symbols.values()) <= {token for row in ids for token in row}
    assert theirs.batch_decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    ours, logits = logits_of(bundle, tmp_path / "hf", "<bt> Two <ph1> men", "Zwei <ph1> Männer")
    assert (ours - logits).abs().max() < 1e-4


@pytest.mark.parametrize(("kind", "symbols", "message"), [
    ("unigram", ["<a", "a>"], "its symbol '<a' can overlap with another one"),
    ("bpe", ["x<s>"], "its symbol 'x<s>' holds the name of a special piece"),
])  # fmt: skip
def test_symbols_that_hugging_face_would_read_differently_are_refused(
    kind: str, symbols: list[str], message: str
) -> None:
    tokenizer = Tokenizer(train_model(model_type=kind, vocab_size=326, user_defined_symbols=symbols))
    with pytest.raises(DataError, match=f"{message}.*`dst export ct2`"):
        tokenizer_json(tokenizer)


def test_the_card_names_languages_and_use(exported: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert "MarianMTModel" in card
    assert "`target`, with another vocabulary or Unicode normalisation" in card
    assert sorted(path.name for path in exported.iterdir()) == sorted([*FILES, "target", "target.spm"])


def test_only_an_earlier_export_is_replaced(tmp_path: Path, trained: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    with pytest.raises(UserError):
        export_hf(trained, mine, overwrite=True)
    assert (mine / "letter").read_text() == "dear"
    export_hf(trained, tmp_path / "hf")
    with pytest.raises(UserError, match="--overwrite"):
        export_hf(trained, tmp_path / "hf")
    export_hf(trained, tmp_path / "hf", overwrite=True)
    with pytest.raises(UserError, match="is an export"):
        export_hf(trained, tmp_path / "hf" / "inside")
    bundle, _ = of_each_language("target", tmp_path / "bundle")
    export_hf(bundle, tmp_path / "hf", overwrite=True)
    (tmp_path / "hf" / "target" / "letter").write_text("dear")
    with pytest.raises(DataError, match="hf holds target/letter"):
        export_hf(trained, tmp_path / "hf", overwrite=True)
    (tmp_path / "hf" / "target" / "letter").unlink()
    export_hf(random_bundle(tmp_path / "single"), tmp_path / "hf", overwrite=True)
    (tmp_path / "hf" / "target").write_text("a letter too")
    with pytest.raises(DataError, match="hf holds target"):
        export_hf(trained, tmp_path / "hf", overwrite=True)
    (tmp_path / "hf" / "target").unlink()
    with pytest.raises(DataError, match="is an export"):
        open_bundle(tmp_path / "hf")
