"""Random sentences: what is said is drawn, and put into English and German at once."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeVar

from data_prep.grammar import lexicon, phrases
from data_prep.grammar.german import ARTICLE, DECLENSIONS, Case, Gender
from data_prep.grammar.lexicon import AUXILIARIES, PRONOUNS, Pronoun, Slot, Verb
from data_prep.grammar.phrases import COMMA, NOTHING, Clause, Pair, Phrase, Word, conjugate, join, say

#: Raise it when the sentences change; a test compares them with those of this revision.
GRAMMAR_REVISION = 2

T = TypeVar("T")

_MOST_WORDS = 20  # of an English sentence
_BEINGS = ("person", "animal")
_RELATIVE_PRONOUNS = ARTICLE | {("dat", "p"): "denen"}


class NounPhrase(NamedTuple):
    """A noun phrase in its case, with what the words around it must know."""

    words: Phrase
    kind: str  # of its noun
    agreement: int  # the form of a verb that it takes as a subject
    pronoun: Pronoun | None  # what can take it up
    light: bool = False  # whether it is a pronoun, which comes first behind the German verb


def _person(who: Pronoun, pronoun: Pronoun | None, case: Case, kind: str = "person") -> NounPhrase:
    """A pronoun or a name in its case."""
    words = say(who.english[case != "nom"], who.german[("nom", "acc", "dat").index(case)])
    return NounPhrase(words, kind, who.agreement, pronoun, light=who is pronoun)


#: Persons by pronoun or name, and the pronoun that takes each up.
_PERSONS = [(PRONOUNS[name], PRONOUNS[name]) for name in ("I", "you", "m", "f", "p")]
_PERSONS += [(Pronoun(1, [name] * 2, [name] * 3), PRONOUNS[gender]) for gender, name in lexicon.NAMES]


def generate_pairs(count: int, seed: int) -> list[Pair]:
    """Draw pairs of at most 20 English words, each once; a smaller count gives the first of them."""
    speaker = Speaker(seed)
    pairs: dict[str, Pair] = {}
    while len(pairs) < count:
        pair = speaker.sentence()
        if pair.english.count(" ") < _MOST_WORDS:
            pairs.setdefault(pair.english, pair)
    return list(pairs.values())


class Speaker:
    """Draws sentences, the same ones for a seed in every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random  # its stream is documented to stay as it is; that of choice() is not

    def sentence(self) -> Pair:
        """The next sentence."""
        self._tenses = self._pick(lexicon.TENSES)
        past = self._tenses[0] == "past"  # "read" is taken for the present
        self._verbs = [verb for verb in lexicon.VERBS if not past or verb.english[0] != verb.english[2]]
        self._used: list[object] = []
        self._additions = self._chance(0.7)  # times and places; beside a relative clause, whose they are may be unclear
        self._relative = not self._additions
        draw = self._pick([self._statement] * 4 + [self._explanation] * 2 + [self._report, self._question])
        return phrases.write(draw(), "?" if draw == self._question else ".")

    def _statement(self) -> Phrase:
        """Anna reads the book today. Today Anna reads the book."""
        clause, _ = self._clause(negated=self._chance(0.2))
        if clause.time is NOTHING or self._chance(0.5):
            return phrases.statement(clause)
        return phrases.statement(replace(clause, time=NOTHING), front=clause.time)

    def _question(self) -> Phrase:
        """Does Anna read the book?"""
        return phrases.question(self._clause(inverted=True)[0])

    def _report(self) -> Phrase:
        """Anna says that Paul does not read the book."""
        verb, subject = self._pick(lexicon.REPORTS), self._noun_phrase(["person"], "nom")
        report = Clause(subject.words, *conjugate(verb, self._tenses[0], subject.agreement))
        content, _ = self._clause(negated=self._chance(0.2))
        return join(phrases.statement(report), phrases.subordinate(say("that", "dass"), content))

    def _explanation(self) -> Phrase:
        """Anna buys the coat because it is cheap. Because it is cheap, Anna buys the coat."""
        main, topics = self._clause(negated=self._chance(0.1))
        topic = self._pick([*topics, None])
        subject = _person(topic.pronoun, topic.pronoun, "nom", topic.kind) if topic and topic.pronoun else None
        inner, _ = self._clause(subject, negated=self._chance(0.1))
        reason = phrases.subordinate(say(*self._pick(lexicon.CONJUNCTIONS)), inner)
        if self._chance(0.7):
            return join(phrases.statement(main), reason)
        return phrases.statement(main, front=join(reason, COMMA))

    def _clause(
        self, subject: NounPhrase | None = None, *, negated: bool = False, inverted: bool = False
    ) -> tuple[Clause, list[NounPhrase]]:
        """What a subject, which is drawn if there is none, does or is like; and what the next clause may be about."""
        if subject.kind not in _BEINGS if subject else self._chance(0.12):
            return self._description(subject, negated), []
        verb = self._pick([verb for verb in self._verbs if subject is None or subject.kind in verb.subjects])
        subject = subject or self._noun_phrase(verb.subjects, "nom", definite=negated)
        return self._action(subject, verb, verb.slots, negated=negated, support=negated or inverted)

    def _description(self, subject: NounPhrase | None, negated: bool) -> Clause:
        """The coat is not very cheap."""
        fitting = [one for one in lexicon.ADJECTIVES if not subject or subject.kind in one[2]]
        english, german, kinds = self._pick(fitting)
        subject = subject or self._noun_phrase(kinds, "nom", definite=negated)
        be, adverbs = AUXILIARIES[self._tenses[0]], [say("very", "sehr")] if self._chance(0.3) else []
        return Clause(
            subject.words,
            say(be.english[subject.agreement], be.german[subject.agreement]),
            negation=say("not", "nicht") if negated else NOTHING,
            complement=join(*adverbs, say(english, german)),
        )

    def _action(
        self, subject: NounPhrase, verb: Verb, slots: list[Slot], *, negated: bool = False, support: bool = False
    ) -> tuple[Clause, list[NounPhrase]]:
        """Anna does not read the book today."""
        tense = self._pick([tense for tense in self._tenses if not (support and AUXILIARIES[tense].bound)])
        finite, rest = conjugate(verb, tense, subject.agreement, support=support)
        topics = [subject] if subject.kind == "person" and subject.pronoun else []
        if self._additions and self._chance(0.2) and not any(slot.preposition for slot in slots):
            slots = [*slots, self._pick(lexicon.CIRCUMSTANCES)]
        pronouns = objects = complement = time = NOTHING
        for slot in slots:
            phrase = self._noun_phrase(slot.kinds, slot.case, definite=negated)
            if slot.preposition:
                complement = join(say(*slot.preposition), phrase.words)
            elif phrase.light:
                pronouns = phrase.words
            else:
                objects = join(objects, phrase.words)
                topics += [phrase] if topics and phrase.pronoun and phrase.kind not in _BEINGS else []
        if self._additions and self._chance(0.3):
            english, german = self._pick(lexicon.TIMES[AUXILIARIES[tense].time])
            time = join(*map(say, english.split(), german.split()))
        negation = say("not", "nicht") if negated else NOTHING
        return Clause(subject.words, finite, rest, negation, pronouns, objects, complement, time), topics

    def _noun_phrase(self, kinds: Sequence[str], case: Case, *, definite: bool = False) -> NounPhrase:
        """A person by name or pronoun; or a noun with a determiner, and perhaps more around it."""
        kind = self._pick(kinds)
        if kind == "person" and case != "gen" and self._chance(0.35):
            return _person(*self._unused(_PERSONS), case)
        noun, plural, owned = self._unused(lexicon.NOUNS[kind]), self._chance(0.3), case != "gen" and self._chance(0.1)
        determiners = lexicon.DETERMINERS[plural, definite or case == "gen"]
        determiner = self._pick(determiners[:1] if owned else determiners)  # the first is "the"
        agreement = 2 if plural else 1
        gender: Gender = "p" if plural else noun.gender
        endings, adjective_endings = DECLENSIONS[determiner.like]
        words = [say(determiner.english, determiner.stem + endings[case, gender])]
        if self._chance(0.35):
            english, german, _ = self._pick([one for one in lexicon.ADJECTIVES if kind in one[2]])
            words += [say(english, german + adjective_endings[case, gender])]
        words += [say(noun.english_plural if plural else noun.english, noun.german(case, plural=plural))]
        if owned:  # "of" is in the ending of the genitive
            owner = self._noun_phrase(["person"], "gen").words
            words += [Phrase((Word("of", owner.german[0].meanings), *owner.english), owner.german)]
        elif self._relative and case != "gen":
            self._relative = False
            words += [self._relative_clause(kind, gender, agreement)]
        name = gender if kind == "person" or plural else f"it-{gender}"
        pronoun = None if determiner.english == "no" else PRONOUNS.get(name)
        return NounPhrase(join(*words), kind, agreement, pronoun)

    def _relative_clause(self, kind: str, gender: Gender, agreement: int) -> Phrase:
        """Who sleeps; that Anna buys."""
        who, whom = ("who", "whom") if kind == "person" else ("that", "that")
        verbs = [verb for verb in self._verbs if len(verb.slots) == 1 and not verb.slots[0].preposition]
        verbs = [verb for verb in verbs if kind in verb.slots[0].kinds]
        if not verbs or self._chance(0.5):
            subject = NounPhrase(say(who, _RELATIVE_PRONOUNS["nom", gender]), kind, agreement, None)
            return phrases.subordinate(NOTHING, self._clause(subject)[0])
        verb = self._pick(verbs)
        introduction = say(whom, _RELATIVE_PRONOUNS[verb.slots[0].case, gender])
        return phrases.subordinate(introduction, self._action(self._noun_phrase(["person"], "nom"), verb, [])[0])

    def _unused(self, options: Sequence[T]) -> T:
        """One of the options that is not in the sentence yet, if there is one."""
        choice = self._pick([option for option in options if option not in self._used] or options)
        self._used.append(choice)
        return choice

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _chance(self, probability: float) -> bool:
        return self._random() < probability
