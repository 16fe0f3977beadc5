"""German linearisation, by topological fields.

Every German clause is a row of fields: front field, left bracket, middle field, right bracket, end field. In a main
clause the finite verb is the left bracket and participle, infinitive or separable particle the right one; in a
subordinate clause the whole verbal complex stands in the right bracket. Each word remembers the nodes of the plan that
it expresses, under the same names as in English; see ``words``.
"""

from dataclasses import replace

from data_prep.grammar.features import Case, Form, Slot, Tense
from data_prep.grammar.german import (
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
from data_prep.grammar.lexicon import NO, THE, YET, Adverbial
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
    definite,
)
from data_prep.grammar.words import COMMA, Word, Words, counterparts, within


def noun_phrase(phrase: NounPhrase, case: Case) -> Words:
    """The words of a noun phrase in a case, a relative clause between commas."""
    match phrase:
        case Pronoun():
            words = [Word(_pronoun(phrase, case), ("head",))]
        case Name():
            words = [Word(phrase.text, ("head",))]
        case Common():
            words = _common(phrase, case)
        case Coordination():
            both = within("left", noun_phrase(phrase.left, case)), within("right", noun_phrase(phrase.right, case))
            words = [*both[0], Word("und", ("and",)), *both[1]]
        case RelativePronoun():
            words = [Word(RELATIVE_PRONOUN.form(phrase.gender, phrase.number, case), ("head",))]
        case _:
            words = [Word(WHO[case.value], ("head",))]
    return words


def _pronoun(pronoun: Pronoun, case: Case) -> str:
    if pronoun.person == 1:
        return FIRST_PERSON[pronoun.number][case.value]
    if pronoun.person == 2:
        return POLITE[case.value]
    return THIRD_PERSON.form(pronoun.gender, pronoun.number, case)


def _common(phrase: Common, case: Case) -> Words:
    noun, number, determiner = phrase.noun.german, phrase.number, phrase.determiner
    words = counterparts(
        "determiner", determiner.german(noun.gender, number, case).split(), determiner.english_words(number)
    )
    ending = determiner.adjectives.form(noun.gender, number, case)
    words += [Word(adjective.stem + ending, (f"adjective.{n}",)) for n, adjective in enumerate(phrase.adjectives)]
    words.append(Word(noun.form(number, case), ("head",)))
    if phrase.owner:
        words += within("owner", noun_phrase(phrase.owner, Case.GENITIVE))
    if phrase.relative:
        words += _relative_clause(phrase.relative)
    return words


def _relative_clause(plan: Clause) -> Words:
    return [COMMA, *within("relative", clause(plan, Form.SUBORDINATE)), COMMA]


def adverbial(phrase: Prepositional | Adverbial) -> Words:
    """The words of an adverbial; a preposition contracts with a definite article that follows it."""
    if isinstance(phrase, Adverbial):
        return phrase.german_words()
    preposition = phrase.preposition
    words = within("phrase", noun_phrase(phrase.phrase, preposition.case))
    first = Word(preposition.german, ("preposition",))
    if not preposition.english:  # "remembers me", but *an mich*
        first = Word(preposition.german, (), words[0].nodes)
    if isinstance(phrase.phrase, Common) and phrase.phrase.determiner is THE:
        contraction = CONTRACTIONS.get((preposition.german, words[0].text))
        if contraction:
            return [Word(contraction, first.nodes + words[0].nodes), *words[1:]]
    return [first, *words]


def clause(plan: Clause, form: Form) -> Words:
    """The words of a clause, field by field."""
    front = plan.front
    if front is None and form is Form.MAIN:
        front = Slot.SUBJECT
    left, right = _brackets(plan, form)
    first = [Word("bitte", ("please",))] if form is Form.IMPERATIVE else _slot(plan, front) if front else []
    return [*first, *left, *_middle_field(plan, form, front), *right, *_end_field(plan, front)]


def _brackets(plan: Clause, form: Form) -> tuple[Words, Words]:
    """Left and right bracket."""
    finite, non_finite = _verbal_complex(plan)
    verb = plan.verb.german
    if form is Form.INFINITIVE:
        if verb.particle:
            return [], [_verb(plan, f"{verb.particle}zu{verb.infinitive}").also("to")]
        return [], [Word("zu", ("to",)), _verb(plan, verb.infinitive)]
    if form is Form.SUBORDINATE:
        return [], [*non_finite, finite] if non_finite else [_verb(plan, verb.particle + finite.text)]
    return [finite], non_finite or _particle(plan)


def _verb(plan: Clause, text: str) -> Word:
    """The verb in a form that contains its particle, if it has one."""
    return Word(text, ("verb", "particle") if plan.verb.german.particle else ("verb",))


def _particle(plan: Clause) -> Words:
    """The separated particle, if there is one: part of the verb unless English has one too."""
    english, particle = plan.verb.english, plan.verb.german.particle
    if not particle:
        return []
    return [
        Word(particle, ("particle",), ("verb",))
        if english.particle or english.preposition
        else Word(particle, ("verb",))
    ]


def _verbal_complex(plan: Clause) -> tuple[Word, Words]:
    """The finite verb, without its particle, and the participle or infinitive that depends on it."""
    verb = plan.verb.german
    person, number = agreement(plan.subject)
    infinitive = _verb(plan, verb.particle + verb.infinitive)
    if plan.modal:
        tense = Tense.PAST if plan.modal.subjunctive else plan.tense
        return Word(plan.modal.german.finite(tense, person, number), ("modal",)), [infinitive]
    if plan.tense is Tense.FUTURE:
        return Word(WERDEN.finite(Tense.PRESENT, person, number), ("auxiliary",)), [infinitive]
    if plan.tense is Tense.PERFECT:
        auxiliary: GermanVerb = SEIN if verb.perfect_with_sein else HABEN
        finite = Word(auxiliary.finite(Tense.PRESENT, person, number), ("auxiliary",))
        return finite, [_verb(plan, verb.particle + verb.participle)]
    return Word(verb.finite(plan.tense, person, number), ("verb",)), []


def _slot(plan: Clause, slot: Slot) -> Words:
    """The words of one part of the clause, for the front field."""
    if slot is Slot.EMBEDDED and plan.embedded:
        return [*within("embedded", _embedded(plan.embedded)), COMMA.also("comma")]
    phrase = plan.filler(slot)
    if isinstance(phrase, Prepositional | Adverbial):
        return within(slot.value, adverbial(phrase))
    cases = {Slot.SUBJECT: Case.NOMINATIVE, Slot.DIRECT: plan.verb.case, Slot.INDIRECT: Case.DATIVE}
    return within(slot.value, noun_phrase(phrase, cases[slot]))


def _middle_field(plan: Clause, form: Form, front: Slot | None) -> Words:
    """Subject, pronouns, definite objects, *nicht*, adjuncts, indefinite objects, then what belongs to the verb.

    Time stands after the first definite object.
    """
    pronouns, known, new = _objects(plan, front)
    words = _subject_and_reflexive(plan, form, front) + pronouns
    frequency = within("frequency", adverbial(plan.frequency)) if plan.frequency else []
    yet = frequency if plan.frequency is YET else []
    time = within("time", adverbial(plan.time)) if plan.time and front is not Slot.TIME else []
    if not yet:
        time = frequency + time
    for phrase in known[:1]:
        words += phrase
    words += time
    for phrase in known[1:]:
        words += phrase
    if plan.negates_object:
        new = yet + new
    elif plan.negated:
        words += [*yet, Word("nicht", ("not",))]
    for node, adjunct in (("manner", plan.manner), ("companion", plan.companion)):
        if adjunct:
            words += within(node, adverbial(adjunct))
    place = within("place", adverbial(plan.place)) if plan.place and front is not Slot.PLACE else []
    governed = within("oblique", adverbial(plan.oblique)) if plan.oblique and front is not Slot.OBLIQUE else []
    words += [*new, *place] if plan.verb.takes_place else [*place, *new, *governed]
    if plan.predicate:
        words += within("predicate", _predicate(plan.predicate))
    return words


def _subject_and_reflexive(plan: Clause, form: Form, front: Slot | None) -> Words:
    """The reflexive pronoun follows a pronoun subject but precedes any other in the middle field."""
    with_subject = front is not Slot.SUBJECT and form is not Form.INFINITIVE
    subject = within("subject", noun_phrase(plan.subject, Case.NOMINATIVE)) if with_subject else []
    if form is Form.IMPERATIVE:  # English has no subject there
        subject = [word.only_beside("verb") for word in subject]
    if not plan.verb.german.reflexive:
        return subject
    pronoun = [Word(reflexive(*agreement(plan.subject)), (), ("verb",))]
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
    for node, phrase, case in (("indirect", indirect, Case.DATIVE), ("direct", direct, plan.verb.case)):
        if phrase is None:
            continue
        words = within(node, noun_phrase(phrase, case))
        if phrase is direct and plan.negates_object:
            words[0] = words[0].also("not")
        if isinstance(phrase, Pronoun):
            pronouns = words + pronouns
        elif definite(phrase):
            known.append(words)
        else:
            new += words
    return pronouns, known, new


def _predicate(predicate: Predicate) -> Words:
    adjective = predicate.adjective
    plain = Word(adjective.german, ("adjective",))
    if predicate.than and adjective.comparative:
        return [Word(adjective.comparative[1], ("adjective",))]
    if predicate.as_much_as:
        return [Word("so", ("as",)), plain]
    if predicate.years:
        return [Word(number_word(predicate.years), ("years",)), Word("Jahre", ("unit",)), plain]
    return [Word("sehr", ("very",)), plain] if predicate.very else [plain]


def _end_field(plan: Clause, front: Slot | None) -> Words:
    """What is extraposed: the standard of a comparison, the object's relative clause, an embedded clause."""
    words: Words = []
    if plan.predicate and plan.predicate.than:
        words += within("predicate", _standard("als", plan.predicate.than))
    if plan.predicate and plan.predicate.as_much_as:
        words += within("predicate", _standard("wie", plan.predicate.as_much_as))
    if isinstance(plan.direct, Common) and plan.direct.relative and front is not Slot.DIRECT:
        words += within("direct", _relative_clause(plan.direct.relative))
    if plan.embedded and front is not Slot.EMBEDDED:
        words += [COMMA, *within("embedded", _embedded(plan.embedded)), COMMA]
    return words


def _standard(word: str, phrase: NounPhrase) -> Words:
    return [Word(word, ("than",)), *within("standard", noun_phrase(phrase, Case.NOMINATIVE))]


def _embedded(embedded: Embedded) -> Words:
    conjunction = within("conjunction", embedded.conjunction.german_words()) if embedded.conjunction else []
    return conjunction + within("clause", clause(embedded.clause, embedded.form))


def sentence(plan: Sentence) -> Words:
    """The words of a sentence, commas included, before the final mark."""
    words = clause(plan.clause, plan.form)
    if plan.second and plan.conjunction:
        words += within("conjunction", plan.conjunction.german_words())
        words += within("second", clause(plan.second, Form.MAIN))
    return words
