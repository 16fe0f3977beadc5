"""English linearisation: do-support, inversion in questions, objects before adverbials, place before time.

Each word remembers the nodes of the plan that it expresses; see ``words``.
"""

from data_prep.grammar import english
from data_prep.grammar.english import BE, DO, HAVE, EnglishVerb
from data_prep.grammar.features import Form, Number, Slot, Tense
from data_prep.grammar.lexicon import YET, Adverbial, Verb
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
    RelativePronoun,
    Sentence,
    agreement,
)
from data_prep.grammar.words import COMMA, Word, Words, counterparts, within


def noun_phrase(phrase: NounPhrase, *, subject: bool = False, governed: bool = False) -> Words:
    """The words of a noun phrase; ``governed`` is right after a preposition, where "that" cannot stand."""
    match phrase:
        case Pronoun(person, number, gender, animate):
            words = [Word(english.pronoun(person, number, gender, animate=animate, subject=subject), ("head",))]
        case Name():
            words = [Word(phrase.text, ("head",))]
        case Common():
            words = _common(phrase)
        case Coordination():
            both = within("left", noun_phrase(phrase.left)), within("right", noun_phrase(phrase.right))
            words = [*both[0], Word("and", ("and",)), *both[1]]
        case RelativePronoun(human=False):
            words = [Word("which" if governed else "that", ("head",))]
        case _:
            words = [Word("who" if subject else "whom", ("head",))]
    return words


def _common(phrase: Common) -> Words:
    words = [Word(adjective.english, (f"adjective.{n}",)) for n, adjective in enumerate(phrase.adjectives)]
    words.append(Word(phrase.noun.english.form(phrase.number), ("head",)))
    determiner = phrase.determiner.english[0 if phrase.number is Number.SINGULAR else 1]
    if determiner == "a":
        determiner = english.article(words[0].text)
    words = [*counterparts("determiner", determiner.split(), phrase.determiner.german_words), *words]
    if phrase.owner:
        words += within("owner", _marked("of", noun_phrase(phrase.owner)))
    if phrase.relative:
        words += within("relative", clause(phrase.relative, Form.SUBORDINATE))
    return words


def _marked(preposition: str, words: Words) -> Words:
    """A phrase behind a preposition for what German expresses by case."""
    return [Word(preposition, (), words[0].nodes), *words]


def adverbial(phrase: Prepositional | Adverbial) -> Words:
    """The words of an adverbial."""
    if isinstance(phrase, Adverbial):
        return phrase.english_words()
    preposition = [Word(word, ("preposition",)) for word in phrase.preposition.english.split()]
    return [*preposition, *within("phrase", noun_phrase(phrase.phrase, governed=True))]


def clause(plan: Clause, form: Form) -> Words:
    """The words of a clause: front, auxiliary if inverted, subject, verbs, objects, adverbials."""
    front = _slot(plan, plan.front) if plan.front and plan.front is not Slot.SUBJECT else []
    inverted = form is Form.QUESTION and plan.front is not Slot.SUBJECT
    auxiliaries, main = _verb_group(plan, support=inverted or plan.negated)
    if form is Form.INFINITIVE:
        return [Word("to", ("to",)), Word(plan.verb.english.base, ("verb",)), *_after_verb(plan)]
    if form is Form.IMPERATIVE:
        negation = [Word("do", (), ("verb",)), Word("not", ("not",))] if plan.negated else []
        return [Word("please", ("please",)), *negation, Word(plan.verb.english.base, ("verb",)), *_after_verb(plan)]
    subject = within("subject", noun_phrase(plan.subject, subject=True))
    words = [*front, auxiliaries[0], *subject, *auxiliaries[1:]] if inverted else [*front, *subject, *auxiliaries]
    if plan.negated:
        words.append(Word("not", ("not",)))
    if plan.frequency and plan.frequency is not YET:
        words += within("frequency", adverbial(plan.frequency))
    if [word.text for word in words[-2:]] == ["can", "not"]:
        words[-2:] = [Word("cannot", words[-2].nodes + words[-1].nodes)]
    return [*words, *main, *_after_verb(plan)]


def _verb_group(plan: Clause, *, support: bool) -> tuple[Words, Words]:
    """The finite auxiliary (none or one) and the verbs after it; ``support`` calls for *do* where there is none."""
    verb, modal = plan.verb.english, plan.modal
    person, number = _agreement(plan.subject)
    base = Word(verb.base, ("verb",))
    if modal and modal.lexical:
        to = Word("to", (), ("modal", "verb"))
        return _finite("modal", modal.lexical, plan.tense, person, number, [to, base], support=support)
    if modal:
        return [Word(modal.english[1 if plan.tense is Tense.PAST else 0], ("modal",))], [base]
    if plan.tense is Tense.FUTURE:
        return [Word("will", ("auxiliary",))], [base]
    if plan.tense is Tense.PERFECT:
        return [Word(HAVE.finite(Tense.PRESENT, person, number), ("auxiliary",))], [Word(verb.participle, ("verb",))]
    if verb.base == BE.base:
        finite = Word(verb.finite(plan.tense, person, number), ("verb",))
        return [finite.only_beside("verb") if verb.particle else finite], []  # "is raining" is one German verb
    return _finite("verb", verb, plan.tense, person, number, [], support=support)


def _finite(
    node: str, verb: EnglishVerb, tense: Tense, person: int, number: Number, rest: Words, *, support: bool
) -> tuple[Words, Words]:
    """A full verb in the simple present or past, with *do* if it needs support."""
    if support:
        return [Word(DO.finite(tense, person, number), (), (node,))], [Word(verb.base, (node,)), *rest]
    return [], [Word(verb.finite(tense, person, number), (node,)), *rest]


def _agreement(subject: NounPhrase) -> tuple[int, Number]:
    if isinstance(subject, Pronoun) and subject.person == 2:
        return 2, Number.PLURAL
    return agreement(subject)


def _slot(plan: Clause, slot: Slot) -> Words:
    """The words of one part of the clause other than the subject, for its front."""
    if slot is Slot.EMBEDDED and plan.embedded:
        return [*within("embedded", _embedded(plan.embedded)), COMMA.also("comma")]
    phrase = plan.filler(slot)
    if isinstance(phrase, Prepositional | Adverbial):
        words = adverbial(phrase)
    elif slot is Slot.INDIRECT:
        words = _marked("to", noun_phrase(phrase, governed=True))
    else:
        words = noun_phrase(phrase)
    return within(slot.value, words)


def _after_verb(plan: Clause) -> Words:
    words = _objects(plan)
    if plan.oblique and plan.front is not Slot.OBLIQUE:
        words += within("oblique", adverbial(plan.oblique))
    if plan.predicate:
        words += within("predicate", _predicate(plan.predicate))
    if plan.manner:
        words += within("manner", adverbial(plan.manner))
    if plan.place and plan.front is not Slot.PLACE:
        words += within("place", adverbial(plan.place))
    if plan.companion:
        words += within("companion", adverbial(plan.companion))
    if plan.frequency is YET:
        words += within("frequency", adverbial(YET))
    if plan.time and plan.front is not Slot.TIME:
        words += within("time", adverbial(plan.time))
    if plan.embedded and plan.front is not Slot.EMBEDDED:
        words += within("embedded", _embedded(plan.embedded))
    return words


def _objects(plan: Clause) -> Words:
    verb = plan.verb.english
    direct = within("direct", noun_phrase(plan.direct)) if plan.direct and plan.front is not Slot.DIRECT else []
    indirect = (
        within("indirect", noun_phrase(plan.indirect)) if plan.indirect and plan.front is not Slot.INDIRECT else []
    )
    words = _particle(plan.verb, verb.preposition)
    if isinstance(plan.direct, Pronoun):
        words += [*direct, *_particle(plan.verb, verb.particle)]
    else:
        words = [*_particle(plan.verb, verb.particle), *words, *([] if plan.recipient_first else direct)]
    if indirect:
        words += indirect if plan.recipient_first else _marked("to", indirect)
    return words + direct if plan.recipient_first else words


def _particle(verb: Verb, text: str) -> Words:
    """A particle, or a preposition without a phrase of its own: none if there is no text."""
    if not text:
        return []
    return [Word(text, ("particle",), ("verb",)) if verb.german.particle else Word(text, ("verb",))]


def _predicate(predicate: Predicate) -> Words:
    adjective = predicate.adjective
    plain = Word(adjective.english, ("adjective",))
    if predicate.than and adjective.comparative:
        words = [Word(text, ("adjective",)) for text in adjective.comparative[0].split()]
        return [*words, Word("than", ("than",)), *within("standard", noun_phrase(predicate.than, subject=True))]
    if predicate.as_much_as:
        standard = within("standard", noun_phrase(predicate.as_much_as, subject=True))
        return [Word("as", ("as",)), plain, Word("as", ("than",)), *standard]
    if predicate.years:
        return [Word(english.number_word(predicate.years), ("years",)), Word("years", ("unit",)), plain]
    return [Word("very", ("very",)), plain] if predicate.very else [plain]


def _embedded(embedded: Embedded) -> Words:
    conjunction = within("conjunction", embedded.conjunction.english_words()) if embedded.conjunction else []
    return conjunction + within("clause", clause(embedded.clause, embedded.form))


def sentence(plan: Sentence) -> Words:
    """The words of a sentence, commas included, before the final mark."""
    words = clause(plan.clause, plan.form)
    if plan.second and plan.conjunction:
        words += within("conjunction", plan.conjunction.english_words())
        words += within("second", clause(plan.second, Form.MAIN))
    return words
