"""German linearisation, by topological fields.

Every German clause is a row of fields: front field, left bracket, middle field, right bracket, end field. In a main
clause the finite verb is the left bracket and participle, infinitive or separable particle the right one; in a
subordinate clause the whole verbal complex stands in the right bracket.
"""

from dataclasses import replace

from data_prep.sources.toy.features import Case, Form, Slot, Tense
from data_prep.sources.toy.german import (
    CONTRACTIONS,
    FIRST_PERSON,
    HABEN,
    POLITE,
    RELATIVE_PRONOUN,
    SEIN,
    THIRD_PERSON,
    WERDEN,
    WHO,
    GermanVerb,
    number_word,
    reflexive,
)
from data_prep.sources.toy.lexicon import NO, THE, YET, Adverbial
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
    definite,
)

Words = list[str]


def noun_phrase(phrase: NounPhrase, case: Case) -> Words:
    """The words of a noun phrase in a case, a relative clause between commas."""
    match phrase:
        case Pronoun():
            words = [_pronoun(phrase, case)]
        case Name():
            words = [phrase.text]
        case Common():
            words = _common(phrase, case)
        case Coordination():
            words = [*noun_phrase(phrase.left, case), "und", *noun_phrase(phrase.right, case)]
        case RelativePronoun():
            words = [RELATIVE_PRONOUN.form(phrase.gender, phrase.number, case)]
        case _:
            words = [WHO[case.value]]
    return words


def _pronoun(pronoun: Pronoun, case: Case) -> str:
    if pronoun.person == 1:
        return FIRST_PERSON[pronoun.number][case.value]
    if pronoun.person == 2:
        return POLITE[case.value]
    return THIRD_PERSON.form(pronoun.gender, pronoun.number, case)


def _common(phrase: Common, case: Case) -> Words:
    noun, number, determiner = phrase.noun.german, phrase.number, phrase.determiner
    words = determiner.german(noun.gender, number, case).split()
    words += [a.stem + determiner.adjectives.form(noun.gender, number, case) for a in phrase.adjectives]
    words.append(noun.form(number, case))
    if phrase.owner:
        words += noun_phrase(phrase.owner, Case.GENITIVE)
    if phrase.relative:
        words += _relative_clause(phrase.relative)
    return words


def _relative_clause(plan: Clause) -> Words:
    return [",", *clause(plan, Form.SUBORDINATE), ","]


def adverbial(phrase: Prepositional | Adverbial) -> Words:
    """The words of an adverbial; a preposition contracts with a definite article that follows it."""
    if isinstance(phrase, Adverbial):
        return phrase.german.split()
    preposition = phrase.preposition
    words = noun_phrase(phrase.phrase, preposition.case)
    if isinstance(phrase.phrase, Common) and phrase.phrase.determiner is THE:
        contraction = CONTRACTIONS.get((preposition.german, words[0]))
        if contraction:
            return [contraction, *words[1:]]
    return [preposition.german, *words]


def clause(plan: Clause, form: Form) -> Words:
    """The words of a clause, field by field."""
    front = plan.front
    if front is None and form is Form.MAIN:
        front = Slot.SUBJECT
    left, right = _brackets(plan, form)
    first = ["bitte"] if form is Form.IMPERATIVE else _slot(plan, front) if front else []
    return [*first, *left, *_middle_field(plan, form, front), *right, *_end_field(plan, front)]


def _brackets(plan: Clause, form: Form) -> tuple[Words, Words]:
    """Left and right bracket."""
    finite, non_finite = _verbal_complex(plan)
    verb = plan.verb.german
    if form is Form.INFINITIVE:
        return [], [f"{verb.particle}zu{verb.infinitive}"] if verb.particle else ["zu", verb.infinitive]
    if form is Form.SUBORDINATE:
        return [], [*non_finite, finite] if non_finite else [verb.particle + finite]
    return [finite], non_finite or ([verb.particle] if verb.particle else [])


def _verbal_complex(plan: Clause) -> tuple[str, Words]:
    """The finite verb, without its particle, and the participle or infinitive that depends on it."""
    verb = plan.verb.german
    person, number = agreement(plan.subject)
    if plan.modal:
        tense = Tense.PAST if plan.modal.subjunctive else plan.tense
        return plan.modal.german.finite(tense, person, number), [verb.particle + verb.infinitive]
    if plan.tense is Tense.FUTURE:
        return WERDEN.finite(Tense.PRESENT, person, number), [verb.particle + verb.infinitive]
    if plan.tense is Tense.PERFECT:
        auxiliary: GermanVerb = SEIN if verb.perfect_with_sein else HABEN
        return auxiliary.finite(Tense.PRESENT, person, number), [verb.particle + verb.participle]
    return verb.finite(plan.tense, person, number), []


def _slot(plan: Clause, slot: Slot) -> Words:
    """The words of one part of the clause, for the front field."""
    if slot is Slot.EMBEDDED and plan.embedded:
        return [*_embedded(plan.embedded), ","]
    phrase = plan.filler(slot)
    if isinstance(phrase, Prepositional | Adverbial):
        return adverbial(phrase)
    cases = {Slot.SUBJECT: Case.NOMINATIVE, Slot.DIRECT: plan.verb.case, Slot.INDIRECT: Case.DATIVE}
    return noun_phrase(phrase, cases[slot])


def _middle_field(plan: Clause, form: Form, front: Slot | None) -> Words:
    """Subject, pronouns, definite objects, *nicht*, adjuncts, indefinite objects, then what belongs to the verb.

    Time stands after the first definite object.
    """
    pronouns, known, new = _objects(plan, front)
    words = _subject_and_reflexive(plan, form, front) + pronouns
    yet = adverbial(YET) if plan.frequency is YET else []
    time = adverbial(plan.time) if plan.time and front is not Slot.TIME else []
    if plan.frequency and not yet:
        time = adverbial(plan.frequency) + time
    for phrase in known[:1]:
        words += phrase
    words += time
    for phrase in known[1:]:
        words += phrase
    if plan.negates_object:
        new = yet + new
    elif plan.negated:
        words += [*yet, "nicht"]
    for adjunct in (plan.manner, plan.companion):
        if adjunct:
            words += adverbial(adjunct)
    place = adverbial(plan.place) if plan.place and front is not Slot.PLACE else []
    governed = adverbial(plan.oblique) if plan.oblique and front is not Slot.OBLIQUE else []
    words += [*new, *place] if plan.verb.takes_place else [*place, *new, *governed]
    if plan.predicate:
        words += _predicate(plan.predicate)
    return words


def _subject_and_reflexive(plan: Clause, form: Form, front: Slot | None) -> Words:
    """The reflexive pronoun follows a pronoun subject but precedes any other in the middle field."""
    with_subject = front is not Slot.SUBJECT and form is not Form.INFINITIVE
    subject = noun_phrase(plan.subject, Case.NOMINATIVE) if with_subject else []
    if not plan.verb.german.reflexive:
        return subject
    pronoun = [reflexive(*agreement(plan.subject))]
    return subject + pronoun if isinstance(plan.subject, Pronoun) else pronoun + subject


def _objects(plan: Clause, front: Slot | None) -> tuple[Words, list[Words], Words]:
    """Objects that stay in the middle field: pronouns (accusative first), known ones, new ones (dative first)."""
    pronouns: Words = []
    known: list[Words] = []
    new: Words = []
    direct = plan.direct if front is not Slot.DIRECT else None
    indirect = plan.indirect if front is not Slot.INDIRECT else None
    if isinstance(direct, Common):
        if plan.negates_object:
            direct = replace(direct, determiner=NO)
        direct = replace(direct, relative=None) if direct.relative else direct
    for phrase, case in ((indirect, Case.DATIVE), (direct, plan.verb.case)):
        if phrase is None:
            continue
        words = noun_phrase(phrase, case)
        if isinstance(phrase, Pronoun):
            pronouns = words + pronouns
        elif definite(phrase):
            known.append(words)
        else:
            new += words
    return pronouns, known, new


def _predicate(predicate: Predicate) -> Words:
    adjective = predicate.adjective
    if predicate.than and adjective.comparative:
        return [adjective.comparative[1]]
    if predicate.as_much_as:
        return ["so", adjective.german]
    if predicate.years:
        return [number_word(predicate.years), "Jahre", adjective.german]
    return ["sehr", adjective.german] if predicate.very else [adjective.german]


def _end_field(plan: Clause, front: Slot | None) -> Words:
    """What is extraposed: the standard of a comparison, the object's relative clause, an embedded clause."""
    words: Words = []
    if plan.predicate and plan.predicate.than:
        words += ["als", *noun_phrase(plan.predicate.than, Case.NOMINATIVE)]
    if plan.predicate and plan.predicate.as_much_as:
        words += ["wie", *noun_phrase(plan.predicate.as_much_as, Case.NOMINATIVE)]
    if isinstance(plan.direct, Common) and plan.direct.relative and front is not Slot.DIRECT:
        words += _relative_clause(plan.direct.relative)
    if plan.embedded and front is not Slot.EMBEDDED:
        words += [",", *_embedded(plan.embedded), ","]
    return words


def _embedded(embedded: Embedded) -> Words:
    conjunction = [embedded.conjunction.german] if embedded.conjunction else []
    return conjunction + clause(embedded.clause, embedded.form)


def sentence(plan: Sentence) -> Words:
    """The words of a sentence, commas included, before the final mark."""
    words = clause(plan.clause, plan.form)
    if plan.second and plan.conjunction:
        words += [*plan.conjunction.german.split(), *clause(plan.second, Form.MAIN)]
    return words
