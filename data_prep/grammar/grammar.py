"""Random sentences of the synchronous grammar, their two sides as text, and the right links between their words."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from data_prep.grammar import english_syntax, german_syntax, lexicon
from data_prep.grammar.clauses import IT, ClauseSampler, Constraints
from data_prep.grammar.features import Form, Gender, Number, Slot, Sort, Tense
from data_prep.grammar.lexicon import Adverbial, Verb
from data_prep.grammar.phrases import Chooser, adjectives_for
from data_prep.grammar.plan import (
    Clause,
    Common,
    Coordination,
    Embedded,
    Name,
    NounPhrase,
    Predicate,
    Prepositional,
    Pronoun,
    Sentence,
    Who,
    definite,
)
from data_prep.grammar.words import join, link
from dstransformer.data import Corpus
from dstransformer.data.alignment import ReferenceAlignment
from dstransformer.errors import DataError, UserError

#: Raise it when the sentences change; a test compares them with those of this revision.
GRAMMAR_REVISION = 1

_ENGLISH_WORDS = range(4, 26)  # lengths of sentences that are kept
_MAX_MISSES = 10_000  # consecutive draws without a new sentence before the grammar counts as exhausted

_YOU = Pronoun(2, Number.PLURAL)
_SAME_TIME = ((Tense.PRESENT, Tense.PRESENT), (Tense.PAST, Tense.PAST))
_FUTURE_CONDITION = (Tense.FUTURE, Tense.PRESENT)
_REASON_TENSES = (*_SAME_TIME, _FUTURE_CONDITION, (Tense.PRESENT, Tense.PERFECT), (Tense.PERFECT, Tense.PRESENT))
_CONJUNCTIONS = (
    (lexicon.BECAUSE, 0.3),
    (lexicon.ALTHOUGH, 0.18),
    (lexicon.IF, 0.18),
    (lexicon.WHEN_NOW, 0.1),
    (lexicon.WHEN_ONCE, 0.1),
    (lexicon.WHILE, 0.08),
    (lexicon.BEFORE, 0.06),
)
_TENSES_WITH = {  # of the main and of the subordinate clause; "when" is "wenn" now and "als" once
    lexicon.BECAUSE: _REASON_TENSES,
    lexicon.ALTHOUGH: _REASON_TENSES,
    lexicon.IF: (_SAME_TIME[0], _FUTURE_CONDITION),
    lexicon.WHEN_NOW: (_SAME_TIME[0], _FUTURE_CONDITION),
    lexicon.WHEN_ONCE: (_SAME_TIME[1],),
    lexicon.WHILE: _SAME_TIME,
    lexicon.BEFORE: _SAME_TIME,
}
_EVENTS = tuple(v for v in (*lexicon.INTRANSITIVE, *lexicon.TRANSITIVE, *lexicon.DITRANSITIVE) if not v.stative)
_PLACED_EVENTS = tuple(v for v in (*lexicon.INTRANSITIVE, *lexicon.TRANSITIVE) if not v.stative)
_OF_PERSONS = tuple(v for v in (*lexicon.TRANSITIVE, *lexicon.OBLIQUE) if v.objects & Sort.PERSON)
_COUNTED = Sort.BEING | Sort.TEXT | Sort.GOODS | Sort.PLACE
_OF_COUNTED = tuple(v for v in lexicon.TRANSITIVE if v.objects & _COUNTED)
_IN_ORDER = Adverbial("in order", "um")


class Pair(NamedTuple):
    """An English sentence, its German translation, and the links between their words, which spaces separate."""

    english: str
    german: str
    alignment: ReferenceAlignment = ReferenceAlignment((), ())


def pronoun_for(phrase: NounPhrase) -> Pronoun | None:
    """The pronoun that takes up a subject, or None where "it" for a child or an animal would be odd."""
    match phrase:
        case Pronoun():
            return phrase
        case Name():
            return Pronoun(3, Number.SINGULAR, phrase.gender)
        case Coordination():
            return Pronoun(3, Number.PLURAL)
        case Common() if phrase.noun.sorts & Sort.PERSON and phrase.determiner is not lexicon.NO:
            if phrase.number is Number.PLURAL:
                return Pronoun(3, Number.PLURAL)
            gender = phrase.noun.german.gender
            return None if gender is Gender.NEUTER else Pronoun(3, Number.SINGULAR, gender)
        case _:
            return None


class SentenceSampler(ClauseSampler):
    """Draws sentences."""

    def sentence(self) -> Sentence:
        """A random sentence."""
        self.used.clear()
        kinds = (
            (self.statement, 0.42),
            (self.question, 0.12),
            (self.request, 0.05),
            (self.with_adverbial_clause, 0.16),
            (self.with_anaphora, 0.06),
            (self.with_complement_clause, 0.09),
            (self.with_infinitive, 0.06),
            (self.coordination, 0.04),
        )
        return self.choose.weighted(kinds)()

    def statement(self) -> Sentence:
        """A declarative main clause."""
        if self.choose.chance(0.005):
            tense = self.choose.pick((Tense.PRESENT, Tense.PAST))
            weather = self.weather(tense)
            time = self.time(tense, None, habitual=False)
            return Sentence(replace(weather, time=time, front=self.choose.pick((None, Slot.TIME))))
        return Sentence(self.clause(Constraints(statement=True, relatives=True)))

    def weather(self, tense: Tense) -> Clause:
        """It is raining."""
        return Clause(IT, self.choose.pick(lexicon.WEATHER), tense)

    def question(self) -> Sentence:
        """A yes-no question, or one about a circumstance, a person or a thing."""
        kind = self.choose.weighted((("yes-no", 0.4), ("adverb", 0.25), ("who", 0.1), ("whom", 0.1), ("which", 0.15)))
        if kind == "yes-no":
            plan = self.clause(Constraints(negation=0.1))
        elif kind == "adverb":
            plan = self.circumstance_question(
                self.choose.weighted(((Tense.PRESENT, 1), (Tense.PAST, 1), (Tense.FUTURE, 1)))
            )
        elif kind == "who":
            plan = self.clause(Constraints(subject=Who(), verb=self.choose.pick(_EVENTS[:2] + _OF_PERSONS), negation=0))
            plan = replace(plan, front=Slot.SUBJECT)
        elif kind == "whom":
            plan = self._about_person()
        else:
            plan = self._about_one_of_several()
        return Sentence(plan, Form.QUESTION)

    def circumstance_question(self, tense: Tense) -> Clause:
        """A clause behind "when", "where" or "why", for direct and indirect questions."""
        word = self.choose.pick((lexicon.WHEN, lexicon.WHERE, lexicon.WHY))
        verb = self._event(tense, placed=word is lexicon.WHERE)
        plan = self.clause(Constraints(tense, verb, adverbials=False, object_pronouns=False, negation=0))
        if word is lexicon.WHERE:
            return replace(plan, place=word, front=Slot.PLACE)
        return replace(plan, time=word, front=Slot.TIME)

    def _event(self, tense: Tense, *, placed: bool = False) -> Verb:
        pool = _PLACED_EVENTS if placed else _EVENTS
        return self.choose.pick([verb for verb in pool if tense is not Tense.PAST or not verb.homograph])

    def _about_person(self) -> Clause:
        """Whom, to whom, for whom."""
        if self.choose.chance(0.25):
            plan = self.clause(
                Constraints(verb=self.choose.pick(lexicon.DITRANSITIVE), negation=0, object_pronouns=False)
            )
            return replace(plan, indirect=Who(), recipient_first=False, front=Slot.INDIRECT)
        verb = self.choose.pick(_OF_PERSONS)
        plan = self.clause(Constraints(verb=verb, negation=0))
        if verb.preposition:
            return replace(plan, oblique=Prepositional(verb.preposition, Who()), front=Slot.OBLIQUE)
        return replace(plan, direct=Who(), front=Slot.DIRECT)

    def _about_one_of_several(self) -> Clause:
        """Which, how many."""
        verb = self.choose.pick(_OF_COUNTED)
        asked = self.common(verb.objects & _COUNTED, plural=0.4, owner=False)
        many = asked.number is Number.PLURAL and self.choose.chance(0.6)
        asked = replace(asked, determiner=lexicon.HOW_MANY if many else lexicon.WHICH)
        plan = self.clause(Constraints(verb=verb, negation=0))
        return replace(plan, direct=asked, front=Slot.DIRECT)

    def request(self) -> Sentence:
        """A polite imperative."""
        wanted = Constraints(
            tense=Tense.PRESENT,
            verb=self.choose.pick(lexicon.ACTIONS),
            subject=_YOU,
            modals=False,
            relatives=True,
            negation=0.12,
        )
        return Sentence(replace(self.clause(wanted), frequency=None), Form.IMPERATIVE)

    def with_adverbial_clause(self) -> Sentence:
        """A main clause before or after a subordinate clause with a conjunction."""
        conjunction = self.choose.weighted(_CONJUNCTIONS)
        main_tense, tense = self.choose.pick(_TENSES_WITH[conjunction])
        reason = conjunction in (lexicon.BECAUSE, lexicon.ALTHOUGH)
        verb = self._event(main_tense) if conjunction in (lexicon.WHILE, lexicon.BEFORE) else None
        main = self.clause(Constraints(main_tense, verb, adverbials=self.choose.chance(0.35), negation=0.1))
        if conjunction is not lexicon.BEFORE and tense is not Tense.PERFECT and self.choose.chance(0.06):
            inner = self.weather(tense)
        else:
            verb = None if reason or conjunction is lexicon.IF else self._event(tense)
            again = self.choose.chance(0.4) and (verb is None or verb.subjects & Sort.PERSON)
            wanted = Constraints(
                tense=tense,
                verb=verb,
                subject=pronoun_for(main.subject) if again else None,
                modals=reason,
                adverbials=reason and self.choose.chance(0.4),
                object_pronouns=False,
                negation=0.12 if reason else 0,
            )
            inner = self.clause(wanted)
        return self._subordinate(main, inner, conjunction)

    def _subordinate(self, main: Clause, inner: Clause, conjunction: Adverbial) -> Sentence:
        """Join the clauses; if the subordinate one comes first, it is the front field of the main clause."""
        front = Slot.EMBEDDED if self.choose.chance(0.4) else None
        return Sentence(replace(main, embedded=Embedded(inner, Form.SUBORDINATE, conjunction), front=front))

    def with_anaphora(self) -> Sentence:
        """A pronoun in the reason takes up the object of the main clause, in the gender of its German noun."""
        wanted_thing = self.choose.chance(0.6)
        verb = self.choose.pick(lexicon.WITH_NEED if wanted_thing else lexicon.WITHOUT_NEED)
        subject = self.name() if self.choose.chance(0.4) else self.agent(Sort.PERSON, known=True)
        thing = self.common(verb.objects & (Sort.GOODS | Sort.TEXT), known=True, plural=0.25, owner=False)
        tense = self.choose.pick((Tense.PRESENT, Tense.PAST))
        wanted = Constraints(tense, verb, subject, modals=False, adverbials=False, negation=0)
        main = replace(self.clause(wanted), direct=thing)
        pronoun = Pronoun(3, thing.number, thing.noun.german.gender, animate=False)
        owner = pronoun_for(subject)
        because = self.choose.chance(0.6)
        if owner and thing.noun.sorts & lexicon.NEED.objects and self.choose.chance(0.5):
            inner = Clause(owner, lexicon.NEED, tense, negated=because is not wanted_thing, direct=pronoun)
        else:
            adjective = self.choose.pick(adjectives_for(thing.noun))
            predicate = Predicate(adjective, very=self.choose.chance(0.3))
            inner = Clause(pronoun, lexicon.BE, tense, negated=self.choose.chance(0.15), predicate=predicate)
        conjunction = lexicon.BECAUSE if because else lexicon.ALTHOUGH
        return Sentence(replace(main, embedded=Embedded(inner, Form.SUBORDINATE, conjunction)))

    def with_complement_clause(self) -> Sentence:
        """A clause that is said, known, believed, hoped or asked."""
        verb = self.choose.pick(
            (lexicon.SAY, lexicon.SAY, lexicon.KNOW, lexicon.KNOW, lexicon.BELIEVE, lexicon.HOPE, lexicon.ASK)
        )
        tense = self.choose.pick((Tense.PRESENT, Tense.PAST))
        negated = verb in (lexicon.KNOW, lexicon.BELIEVE) and self.choose.chance(0.35)
        subject = self.agent(Sort.PERSON, known=negated)
        negated = negated and definite(subject)
        inner_tense = (
            self.choose.pick((Tense.PRESENT, Tense.PERFECT, Tense.FUTURE)) if tense is Tense.PRESENT else tense
        )
        open_question = verb is lexicon.ASK or (verb is lexicon.KNOW and negated)
        if open_question and self.choose.chance(0.5):
            inner_tense = Tense.FUTURE if inner_tense is Tense.PERFECT else inner_tense
            embedded = Embedded(self.circumstance_question(inner_tense), Form.SUBORDINATE)
        else:
            again = pronoun_for(subject) if self.choose.chance(0.2) else None
            inner = self.clause(
                Constraints(inner_tense, subject=again, object_pronouns=False, negation=0 if open_question else 0.15)
            )
            embedded = Embedded(inner, Form.SUBORDINATE, lexicon.WHETHER if open_question else lexicon.THAT)
        return Sentence(Clause(subject, verb, tense, negated=negated, embedded=embedded))

    def with_infinitive(self) -> Sentence:
        """An infinitive clause: what somebody tries, plans or forgets to do, or goes somewhere to do."""
        purpose = self.choose.chance(0.5)
        pool = lexicon.MOTION if purpose else (lexicon.TRY, lexicon.TRY, lexicon.FORGET, lexicon.PLAN)
        main = self.clause(Constraints(verb=self.choose.pick(pool), adverbials=False, negation=0))
        action = self.choose.pick([verb for verb in lexicon.ACTIONS if verb.english.base != "follow"])
        wanted = Constraints(
            Tense.PRESENT,
            action,
            main.subject,
            modals=False,
            adverbials=False,
            object_pronouns=False,
            negation=0,
        )
        embedded = Embedded(self.clause(wanted), Form.INFINITIVE, _IN_ORDER if purpose else None)
        main = replace(main, embedded=embedded)
        if self.choose.chance(0.3) and not main.verb.stative:
            main = replace(main, time=self.time(main.tense, main.modal, habitual=True), front=Slot.TIME)
        return Sentence(main)

    def coordination(self) -> Sentence:
        """Two main clauses joined by "and" or "but"."""
        conjunction = self.choose.pick((lexicon.AND, lexicon.BUT))
        tense = self.choose.weighted(((Tense.PRESENT, 0.5), (Tense.PAST, 0.5)))
        first = self.clause(Constraints(tense, adverbials=self.choose.chance(0.3), negation=0.1))
        again = pronoun_for(first.subject) if self.choose.chance(0.3) else None
        negation = 0.4 if conjunction is lexicon.BUT else 0.05
        light = self.choose.chance(0.3)
        second = self.clause(
            Constraints(tense, subject=again, adverbials=light, object_pronouns=False, negation=negation)
        )
        return Sentence(first, Form.MAIN, conjunction, second)


def realise(plan: Sentence, *, aligned: bool = False) -> Pair:
    """The English and the German sentence that express a plan; if ``aligned``, with the links between their words."""
    mark = "?" if plan.form is Form.QUESTION else "."
    sides = join(english_syntax.sentence(plan), mark), join(german_syntax.sentence(plan), mark)
    english, german = (" ".join(word.text for word in words) for words in sides)
    return Pair(english, german, link(*sides)) if aligned else Pair(english, german)


def generate_pairs(count: int, seed: int, *, aligned: bool = False) -> list[Pair]:
    """Draw ``count`` pairs, no two with the same English side, of 4 to 25 English words.

    A smaller count with the same seed gives a prefix of the same list. Links are empty unless ``aligned``.

    Raises:
        UserError: ``count`` is below 1, or above what the grammar yields in reasonable time.
    """
    sampler = SentenceSampler(Chooser(seed))

    def draw() -> Pair:
        while True:
            pair = realise(sampler.sentence(), aligned=aligned)
            if pair.english.count(" ") + 1 in _ENGLISH_WORDS:
                return pair

    return draw_distinct(draw, count)


def draw_distinct(draw: Callable[[], Pair], count: int) -> list[Pair]:
    """Draw until there are ``count`` pairs with different sources.

    Raises:
        UserError: ``count`` is below 1, or many consecutive draws give no new sentence.
    """
    if count < 1:
        raise UserError(f"the toy corpus needs at least 1 sentence pair, not {count}: ask for a positive count")
    pairs: dict[str, Pair] = {}
    misses = 0
    while len(pairs) < count:
        pair = draw()
        misses = misses + 1 if pair[0] in pairs else 0
        if misses > _MAX_MISSES:
            raise UserError(
                f"the toy grammar yields no more than about {len(pairs)} distinct sentences, not {count}: ask for fewer"
            )
        pairs.setdefault(pair[0], pair)
    return list(pairs.values())


def toy_splits(count: int, seed: int, validation: int, test: int, *, aligned: bool = False) -> dict[str, list[Pair]]:
    """Draw ``count`` training pairs and the held-out sets, which share no source sentence with each other.

    The held-out sets are drawn first: for one seed they do not depend on the size of the training set.

    Raises:
        UserError: A size is below 1, or the total cannot be drawn.
    """
    for name, size in (("training", count), ("validation", validation), ("test", test)):
        if size < 1:
            raise UserError(f"the toy {name} set needs at least 1 sentence pair, not {size}: ask for a positive size")
    held_out = validation + test
    pairs = generate_pairs(count + held_out, seed, aligned=aligned)
    return {"train": pairs[held_out:], "validation": pairs[:validation], "test": pairs[validation:held_out]}


def reference_alignments(corpus: Corpus, split: str) -> list[ReferenceAlignment]:
    """The links of a held-out split, between the whitespace-separated words of its raw text.

    The corpus does not store them: its pairs are drawn again, with the recorded seed.

    Args:
        corpus: A corpus of the toy source alone.
        split: ``validation`` or ``test``.

    Raises:
        UserError: The text is not the grammar's.
        DataError: The grammar of this version draws other pairs.
    """
    options, (source, *others) = corpus.manifest.options, corpus.manifest.sources
    if options["source"] != "toy" or others:
        raise UserError(
            f"--alignments: {corpus.path} is not of --source toy alone, whose grammar knows the right links: leave it "
            "out, or align the text by hand"
        )
    seed, validation, test = (int(str(options[name])) for name in ("seed", "valid_size", "test_size"))
    drawn = generate_pairs(validation + test, seed, aligned=True)
    pairs = drawn[:validation] if split == "validation" else drawn[validation:]
    stored = corpus.split(split)
    sides = [stored.src_texts(), stored.tgt_texts()]
    swapped = corpus.manifest.src_lang != "en"
    if source.revision != str(GRAMMAR_REVISION) or [pair[:2] for pair in pairs] != list(
        zip(*(sides[::-1] if swapped else sides), strict=True)
    ):
        raise DataError(f"{corpus.path} has other sentences than the grammar of this version draws: build it again")
    return [pair.alignment.swapped() if swapped else pair.alignment for pair in pairs]
