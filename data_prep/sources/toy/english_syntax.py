"""English linearisation: do-support, inversion in questions, objects before adverbials, place before time."""

from data_prep.sources.toy import english
from data_prep.sources.toy.english import BE, DO, HAVE, EnglishVerb
from data_prep.sources.toy.features import Form, Number, Slot, Tense
from data_prep.sources.toy.lexicon import YET, Adverbial
from data_prep.sources.toy.plan import (
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

Words = list[str]


def noun_phrase(phrase: NounPhrase, *, subject: bool = False, governed: bool = False) -> Words:
    """The words of a noun phrase; ``governed`` is right after a preposition, where "that" cannot stand."""
    match phrase:
        case Pronoun(person, number, gender, animate):
            words = [english.pronoun(person, number, gender, animate=animate, subject=subject)]
        case Name():
            words = [phrase.text]
        case Common():
            words = _common(phrase)
        case Coordination():
            words = [*noun_phrase(phrase.left), "and", *noun_phrase(phrase.right)]
        case RelativePronoun(human=False):
            words = ["which" if governed else "that"]
        case _:
            words = ["who" if subject else "whom"]
    return words


def _common(phrase: Common) -> Words:
    noun = phrase.noun.english.form(phrase.number)
    words = [*(adjective.english for adjective in phrase.adjectives), noun]
    determiner = phrase.determiner.english[0 if phrase.number is Number.SINGULAR else 1]
    if determiner == "a":
        determiner = english.article(words[0])
    words = [*determiner.split(), *words]
    if phrase.owner:
        words += ["of", *noun_phrase(phrase.owner)]
    if phrase.relative:
        words += clause(phrase.relative, Form.SUBORDINATE)
    return words


def adverbial(phrase: Prepositional | Adverbial) -> Words:
    """The words of an adverbial."""
    if isinstance(phrase, Adverbial):
        return phrase.english.split()
    return [*phrase.preposition.english.split(), *noun_phrase(phrase.phrase, governed=True)]


def clause(plan: Clause, form: Form) -> Words:
    """The words of a clause: front, auxiliary if inverted, subject, verbs, objects, adverbials."""
    front = _slot(plan, plan.front) if plan.front and plan.front is not Slot.SUBJECT else []
    inverted = form is Form.QUESTION and plan.front is not Slot.SUBJECT
    auxiliaries, main = _verb_group(plan, support=inverted or plan.negated)
    if form is Form.INFINITIVE:
        return ["to", plan.verb.english.base, *_after_verb(plan)]
    if form is Form.IMPERATIVE:
        return ["please", *(["do", "not"] if plan.negated else []), plan.verb.english.base, *_after_verb(plan)]
    subject = noun_phrase(plan.subject, subject=True)
    words = [*front, auxiliaries[0], *subject, *auxiliaries[1:]] if inverted else [*front, *subject, *auxiliaries]
    if plan.negated:
        words.append("not")
    if plan.frequency and plan.frequency is not YET:
        words += adverbial(plan.frequency)
    if words[-2:] == ["can", "not"]:
        words[-2:] = ["cannot"]
    return [*words, *main, *_after_verb(plan)]


def _verb_group(plan: Clause, *, support: bool) -> tuple[Words, Words]:
    """The finite auxiliary (none or one) and the verbs after it; ``support`` calls for *do* where there is none."""
    verb, modal = plan.verb.english, plan.modal
    person, number = _agreement(plan.subject)
    if modal and modal.lexical:
        return _finite(modal.lexical, plan.tense, person, number, ["to", verb.base], support=support)
    if modal:
        return [modal.english[1 if plan.tense is Tense.PAST else 0]], [verb.base]
    if plan.tense is Tense.FUTURE:
        return ["will"], [verb.base]
    if plan.tense is Tense.PERFECT:
        return [HAVE.finite(Tense.PRESENT, person, number)], [verb.participle]
    if verb.base == BE.base:
        return [verb.finite(plan.tense, person, number)], []
    return _finite(verb, plan.tense, person, number, [], support=support)


def _finite(
    verb: EnglishVerb, tense: Tense, person: int, number: Number, rest: Words, *, support: bool
) -> tuple[Words, Words]:
    """A full verb in the simple present or past, with *do* if it needs support."""
    if support:
        return [DO.finite(tense, person, number)], [verb.base, *rest]
    return [], [verb.finite(tense, person, number), *rest]


def _agreement(subject: NounPhrase) -> tuple[int, Number]:
    if isinstance(subject, Pronoun) and subject.person == 2:
        return 2, Number.PLURAL
    return agreement(subject)


def _slot(plan: Clause, slot: Slot) -> Words:
    """The words of one part of the clause other than the subject, for its front."""
    if slot is Slot.EMBEDDED and plan.embedded:
        return [*_embedded(plan.embedded), ","]
    phrase = plan.filler(slot)
    if isinstance(phrase, Prepositional | Adverbial):
        return adverbial(phrase)
    if slot is Slot.INDIRECT:
        return ["to", *noun_phrase(phrase, governed=True)]
    return noun_phrase(phrase)


def _after_verb(plan: Clause) -> Words:
    words = _objects(plan)
    if plan.oblique and plan.front is not Slot.OBLIQUE:
        words += adverbial(plan.oblique)
    if plan.predicate:
        words += _predicate(plan.predicate)
    if plan.manner:
        words += adverbial(plan.manner)
    if plan.place and plan.front is not Slot.PLACE:
        words += adverbial(plan.place)
    if plan.companion:
        words += adverbial(plan.companion)
    if plan.frequency is YET:
        words += adverbial(YET)
    if plan.time and plan.front is not Slot.TIME:
        words += adverbial(plan.time)
    if plan.embedded and plan.front is not Slot.EMBEDDED:
        words += _embedded(plan.embedded)
    return words


def _objects(plan: Clause) -> Words:
    verb = plan.verb.english
    direct = noun_phrase(plan.direct) if plan.direct and plan.front is not Slot.DIRECT else []
    indirect = noun_phrase(plan.indirect) if plan.indirect and plan.front is not Slot.INDIRECT else []
    words = verb.preposition.split()
    if isinstance(plan.direct, Pronoun):
        words += [*direct, *verb.particle.split()]
    else:
        words = [*verb.particle.split(), *words, *([] if plan.recipient_first else direct)]
    if indirect:
        words += indirect if plan.recipient_first else ["to", *indirect]
    return words + direct if plan.recipient_first else words


def _predicate(predicate: Predicate) -> Words:
    adjective = predicate.adjective
    if predicate.than and adjective.comparative:
        return [*adjective.comparative[0].split(), "than", *noun_phrase(predicate.than, subject=True)]
    if predicate.as_much_as:
        return ["as", adjective.english, "as", *noun_phrase(predicate.as_much_as, subject=True)]
    if predicate.years:
        return [english.number_word(predicate.years), "years", adjective.english]
    return ["very", adjective.english] if predicate.very else [adjective.english]


def _embedded(embedded: Embedded) -> Words:
    conjunction = embedded.conjunction.english.split() if embedded.conjunction else []
    return conjunction + clause(embedded.clause, embedded.form)


def sentence(plan: Sentence) -> Words:
    """The words of a sentence, commas included, before the final mark."""
    words = clause(plan.clause, plan.form)
    if plan.second and plan.conjunction:
        words += [*plan.conjunction.english.split(), *clause(plan.second, Form.MAIN)]
    return words
