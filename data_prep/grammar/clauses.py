"""Random clauses: a verb, arguments that make sense with it, and circumstances that go together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from data_prep.grammar import lexicon
from data_prep.grammar.features import Case, Frame, Gender, Number, Slot, Sort, Tense
from data_prep.grammar.lexicon import Adverbial, Modal, Noun, Verb
from data_prep.grammar.phrases import PhraseSampler, adjectives_for, colours_for, nouns_of
from data_prep.grammar.plan import (
    Clause,
    Common,
    NounPhrase,
    Predicate,
    Prepositional,
    Pronoun,
    RelativePronoun,
    agreement,
    definite,
    whose,
)

_FRAMES = (
    *((Frame.INTRANSITIVE, 0.15), (Frame.TRANSITIVE, 0.36), (Frame.DITRANSITIVE, 0.11), (Frame.OBLIQUE, 0.08)),
    *((Frame.MOTION, 0.09), (Frame.POSITION, 0.06), (Frame.PLACEMENT, 0.05), (Frame.COPULA, 0.1)),
)
_VERBS: dict[Frame, tuple[Verb, ...]] = {
    Frame.INTRANSITIVE: lexicon.INTRANSITIVE,
    Frame.TRANSITIVE: lexicon.TRANSITIVE,
    Frame.DITRANSITIVE: lexicon.DITRANSITIVE,
    Frame.OBLIQUE: lexicon.OBLIQUE,
    Frame.MOTION: lexicon.MOTION,
    Frame.POSITION: lexicon.POSITION,
    Frame.PLACEMENT: lexicon.PLACEMENT,
    Frame.COPULA: (lexicon.BE,),
}
_DESCRIBED = ((Sort.BEING, 0.5), (Sort.GOODS, 0.2), (Sort.PLACE, 0.15), (Sort.TEXT, 0.15))
_TENSES = ((Tense.PRESENT, 0.4), (Tense.PAST, 0.25), (Tense.PERFECT, 0.22), (Tense.FUTURE, 0.13))
_MODALS = {
    Tense.PRESENT: (lexicon.CAN, lexicon.MUST, lexicon.WANT_TO, lexicon.HAVE_TO, lexicon.SHOULD, lexicon.MAY),
    Tense.PAST: (lexicon.CAN, lexicon.WANT_TO, lexicon.HAVE_TO),
}
_MODALS_NEGATED = (lexicon.CAN, lexicon.MUST_NOT, lexicon.WANT_TO, lexicon.HAVE_TO, lexicon.SHOULD)
_TIMES = {
    Tense.PRESENT: lexicon.TIMES_PRESENT,
    Tense.PAST: lexicon.TIMES_PAST,
    Tense.PERFECT: lexicon.TIMES_PERFECT,
    Tense.FUTURE: lexicon.TIMES_FUTURE,
}
_RelativeBuilder = Callable[[Common, RelativePronoun, "Constraints"], Clause]
IT = Pronoun(3, Number.SINGULAR, Gender.NEUTER, animate=False)


@dataclass(frozen=True)
class Constraints:
    """What the surroundings of a clause ask of it."""

    tense: Tense | None = None
    verb: Verb | None = None
    subject: NounPhrase | None = None
    modals: bool = True
    adverbials: bool = True  # time, frequency, manner and optional places
    statement: bool = False  # time or place may stand first; "no one" and ages make sense
    relatives: bool = False
    object_pronouns: bool = True
    negation: float = 0.15


class ClauseSampler(PhraseSampler):
    """Draws clauses for one sentence at a time."""

    def clause(self, wanted: Constraints) -> Clause:
        """A random clause under these constraints."""
        verb = wanted.verb or self._verb(wanted)
        negated = self.choose.chance(wanted.negation)
        subject = wanted.subject or self._subject(verb, known=negated)
        if wanted.statement and not negated:
            subject = self.perhaps_nobody(subject)
        negated = negated and not _quantified(subject)
        tense, modal = self._tense_and_modal(verb, subject, wanted, negated=negated)
        plan = Clause(subject, verb, tense, modal, negated)
        plan = self._with_arguments(plan, wanted)
        if wanted.relatives:
            plan = self._with_relative(plan)
        if wanted.adverbials and not verb.stative:
            plan = self._with_adverbials(plan, wanted)
        return plan

    def _verb(self, wanted: Constraints) -> Verb:
        """A verb that has the tense asked for, and that a subject already chosen, always a person, can have."""
        while True:
            verb = self.choose.pick(_VERBS[self.choose.weighted(_FRAMES)])
            has_tense = wanted.tense is None or wanted.tense in _tenses_of(verb)
            if has_tense and (wanted.subject is None or verb.subjects & Sort.PERSON):
                return verb

    def _subject(self, verb: Verb, *, known: bool) -> NounPhrase:
        if verb.frame is Frame.COPULA:
            sorts = self.choose.weighted(_DESCRIBED)
            subject = self.agent(sorts, known=known) if sorts is Sort.BEING else self.common(sorts, known=True)
            return replace(subject, adjectives=()) if isinstance(subject, Common) else subject
        if not verb.subjects & Sort.PERSON:
            return self.common(verb.subjects, known=True)
        if verb.subjects & ~Sort.BEING and self.choose.chance(0.5):
            return self.common(verb.subjects & ~Sort.BEING, known=True)
        return self.agent(verb.subjects & Sort.BEING, known=known)

    def _tense_and_modal(
        self, verb: Verb, subject: NounPhrase, wanted: Constraints, *, negated: bool
    ) -> tuple[Tense, Modal | None]:
        """A tense that the verb has, and perhaps a modal, which takes the place of perfect and future."""
        tense = wanted.tense or self.choose.weighted(_TENSES)
        if tense not in _tenses_of(verb):
            tense = Tense.PRESENT if verb.stative else Tense.PERFECT
        fits = wanted.modals and not verb.stative and verb not in lexicon.INVOLUNTARY and _animate(subject)
        if not fits or tense not in _MODALS or not self.choose.chance(0.25):
            return tense, None
        negative = negated and tense is Tense.PRESENT
        return tense, self.choose.pick(_MODALS_NEGATED if negative else _MODALS[tense])

    def _with_arguments(self, plan: Clause, wanted: Constraints) -> Clause:
        verb = plan.verb
        match verb.frame:
            case Frame.TRANSITIVE:
                plan = replace(plan, direct=self._object(plan, wanted))
            case Frame.DITRANSITIVE:
                plan = self._with_two_objects(plan, wanted)
            case Frame.OBLIQUE if verb.preposition:
                phrase = self._person_or_thing(plan, verb.objects, known=plan.negated)
                plan = replace(plan, oblique=Prepositional(verb.preposition, phrase))
            case Frame.MOTION:
                plan = self._with_goal(plan)
            case Frame.POSITION:
                plan = replace(plan, place=self._position(plan))
            case Frame.PLACEMENT:
                relation = self.choose.pick((lexicon.ON, lexicon.ON, lexicon.BESIDE_FURNITURE))
                place = self.relation(relation, goal=True)
                plan = replace(plan, direct=self._object(plan, wanted), place=place)
            case Frame.COPULA:
                plan = replace(plan, predicate=self._predicate(plan, ages=wanted.statement))
        return plan

    def _person_or_thing(self, plan: Clause, sorts: Sort, *, known: bool, dative: bool = False) -> NounPhrase:
        """An object of any of these sorts; persons by pronoun or name too. A bare plural does not show the dative."""
        persons = sorts & Sort.PERSON and (sorts is Sort.PERSON or self.choose.chance(0.5))
        if persons and self.choose.chance(0.3):
            subject = plan.subject
            return self.personal_pronoun(not_person=subject.person if isinstance(subject, Pronoun) else 0)
        if persons and self.choose.chance(0.15):
            return self.name()
        phrase = self.common(Sort.PERSON if persons else sorts, known=known)
        bare_dative = dative and phrase.determiner is lexicon.BARE
        return replace(phrase, determiner=lexicon.SOME) if bare_dative else phrase

    def _object(self, plan: Clause, wanted: Constraints) -> NounPhrase:
        """The direct object. Under negation it is definite or becomes *kein*, so that the scope is clear."""
        verb = plan.verb
        if wanted.object_pronouns and not verb.objects & Sort.PERSON and self.choose.chance(0.05):
            return IT
        known = plan.negated and (bool(verb.objects & Sort.PERSON) or self.choose.chance(0.5))
        phrase = self._person_or_thing(plan, verb.objects, known=known, dative=verb.case is Case.DATIVE)
        if plan.negated and not known and isinstance(phrase, Common) and not phrase.determiner.definite:
            bare = phrase.number is Number.PLURAL or phrase.noun.mass
            return replace(phrase, determiner=lexicon.BARE if bare else lexicon.A)
        return phrase

    def _with_two_objects(self, plan: Clause, wanted: Constraints) -> Clause:
        direct = self._object(plan, wanted)
        indirect = self._person_or_thing(plan, Sort.PERSON, known=plan.negated, dative=True)
        bare = isinstance(direct, Common) and direct.determiner is lexicon.BARE
        recipient_first = isinstance(direct, Common) and not bare and self.choose.chance(0.4)
        return replace(plan, direct=direct, indirect=indirect, recipient_first=recipient_first)

    def _with_goal(self, plan: Clause) -> Clause:
        goal = self.destination() if plan.verb is lexicon.TRAVEL else self.goal()
        if plan.verb is lexicon.TRAVEL and self.choose.chance(0.5):
            return replace(plan, place=goal, companion=self.choose.pick(lexicon.BY))
        return replace(plan, place=goal, companion=self.companion() if self.choose.chance(0.15) else None)

    def _position(self, plan: Clause) -> Prepositional | Adverbial:
        if plan.verb is lexicon.LIVE:
            return self.residence()
        if plan.verb is lexicon.SIT:
            return self.relation(self.choose.pick((lexicon.ON, lexicon.UNDER, lexicon.BESIDE)), goal=False)
        small = isinstance(plan.subject, Common) and plan.subject.noun.sorts & (Sort.PORTABLE | Sort.VESSEL)
        return self.relation(self.choose.pick(lexicon.INDOORS if small else lexicon.OUTDOORS), goal=False)

    def _predicate(self, plan: Clause, *, ages: bool) -> Predicate:
        """An adjective for the subject, perhaps compared; persons and animals also have an age."""
        noun = plan.subject.noun if isinstance(plan.subject, Common) else nouns_of(Sort.PERSON)[0]
        being = noun.sorts & Sort.BEING
        singular = agreement(plan.subject) == (3, Number.SINGULAR)
        if ages and being and singular and definite(plan.subject) and self.choose.chance(0.15):
            old = next(adjective for adjective in lexicon.ADJECTIVES if adjective.english == "old")
            return Predicate(
                old, years=self.choose.between(2, 19) if noun.sorts & Sort.YOUNG else self.choose.between(20, 99)
            )
        adjectives = adjectives_for(noun)
        adjective = self.choose.pick(adjectives)
        if adjective.comparative and self.choose.chance(0.45):
            standard = self._standard(noun)
            if self.choose.chance(0.6) and not plan.negated:
                return Predicate(adjective, than=standard)
            return Predicate(adjective, as_much_as=standard)
        if colours_for(noun) and self.choose.chance(0.3):
            return Predicate(self.choose.pick(colours_for(noun)))
        return Predicate(adjective, very=self.choose.chance(0.25))

    def _standard(self, noun: Noun) -> NounPhrase:
        """What something of the noun's kind is compared with."""
        if noun.sorts & Sort.PERSON and self.choose.chance(0.25):
            return self.name()
        return self.common(noun.sorts & Sort.KIND, known=True, plural=0.15, owner=False)

    def _with_relative(self, plan: Clause) -> Clause:
        """Perhaps add a relative clause to the subject or to an object that ends the clause."""
        subject, direct = plan.subject, plan.direct
        if isinstance(subject, Common) and _can_be_restricted(subject) and self.choose.chance(0.13):
            return replace(plan, subject=replace(subject, relative=self.relative_clause(subject, plan.tense)))
        last = plan.place is None and (plan.indirect is None or plan.recipient_first)
        if isinstance(direct, Common) and last and _can_be_restricted(direct) and self.choose.chance(0.22):
            return replace(plan, direct=replace(direct, relative=self.relative_clause(direct, plan.tense)))
        return plan

    def relative_clause(self, antecedent: Common, tense: Tense) -> Clause:
        """A relative clause about the antecedent, in a tense that goes with the main clause's."""
        sorts = antecedent.noun.sorts
        human = bool(sorts & Sort.PERSON)
        pronoun = RelativePronoun(antecedent.noun.german.gender, antecedent.number, human)
        inner = Constraints(
            tense=tense if tense is Tense.PAST else Tense.PRESENT,
            modals=False,
            adverbials=False,
            object_pronouns=False,
            negation=0.1,
        )
        kinds: list[tuple[_RelativeBuilder, float]]
        kinds = [(self._relative_subject, 0.5) if sorts & Sort.BEING else (self._relative_predicate, 0.2)]
        kinds += [(self._relative_object, 0.45), (self._relative_oblique, 0.1)]
        if human:
            kinds += [(self._relative_possessor, 0.1), (self._relative_recipient, 0.1)]
        if antecedent.noun in lexicon.PLACE_OF:
            kinds += [(self._relative_place, 0.5)]
        return self.choose.weighted(kinds)(antecedent, pronoun, inner)

    def _relative_subject(self, antecedent: Common, pronoun: RelativePronoun, inner: Constraints) -> Clause:
        """The man who sings."""
        verb = self._verb_where(lexicon.ALL_VERBS, inner.tense, subjects=antecedent.noun.sorts)
        return replace(self.clause(replace(inner, verb=verb, subject=pronoun)), front=Slot.SUBJECT)

    def _relative_predicate(self, antecedent: Common, pronoun: RelativePronoun, inner: Constraints) -> Clause:
        """The book that is very long."""
        adjectives = [a for a in adjectives_for(antecedent.noun) if a not in antecedent.adjectives]
        if not adjectives:
            return self._relative_object(antecedent, pronoun, inner)
        predicate = Predicate(self.choose.pick(adjectives), very=self.choose.chance(0.5))
        return Clause(pronoun, lexicon.BE, inner.tense or Tense.PRESENT, predicate=predicate, front=Slot.SUBJECT)

    def _relative_possessor(self, antecedent: Common, _: RelativePronoun, inner: Constraints) -> Clause:
        """The man whose sister sings."""
        thing = self.common(Sort.KIN | Sort.ANIMAL, owner=False)
        possessed = replace(thing, determiner=whose(antecedent), adjectives=())
        verb = self._verb_where(lexicon.ALL_VERBS, inner.tense, subjects=thing.noun.sorts & Sort.BEING)
        return replace(self.clause(replace(inner, verb=verb, subject=possessed)), front=Slot.SUBJECT)

    def _relative_recipient(self, _: Common, pronoun: RelativePronoun, inner: Constraints) -> Clause:
        """The man to whom Anna gives a book."""
        subject = self.agent(Sort.PERSON, known=True)
        plan = self.clause(replace(inner, subject=subject, verb=self.choose.pick(lexicon.DITRANSITIVE)))
        return replace(plan, indirect=pronoun, recipient_first=False, front=Slot.INDIRECT)

    def _relative_place(self, antecedent: Common, pronoun: RelativePronoun, inner: Constraints) -> Clause:
        """The house in which Anna lives."""
        subject = self.agent(Sort.PERSON, known=True)
        verb = self._verb_where((*lexicon.INTRANSITIVE, lexicon.LIVE), inner.tense, subjects=Sort.PERSON)
        at = Prepositional(lexicon.PLACE_OF[antecedent.noun].at, pronoun)
        return replace(self.clause(replace(inner, subject=subject, verb=verb)), place=at, front=Slot.PLACE)

    def _relative_object(self, antecedent: Common, pronoun: RelativePronoun, inner: Constraints) -> Clause:
        """The book that Anna reads."""
        subject = self.agent(Sort.PERSON, known=True)
        verb = self._verb_where(lexicon.TRANSITIVE, inner.tense, objects=antecedent.noun.sorts)
        return replace(self.clause(replace(inner, subject=subject, verb=verb)), direct=pronoun, front=Slot.DIRECT)

    def _relative_oblique(self, antecedent: Common, pronoun: RelativePronoun, inner: Constraints) -> Clause:
        """The friend for whom Anna waits."""
        verb = self._verb_where(lexicon.OBLIQUE, inner.tense, objects=antecedent.noun.sorts)
        if verb.preposition is None:
            return self._relative_object(antecedent, pronoun, inner)
        plan = self.clause(replace(inner, subject=self.agent(Sort.PERSON, known=True), verb=verb))
        return replace(plan, oblique=Prepositional(verb.preposition, pronoun), front=Slot.OBLIQUE)

    def _verb_where(
        self,
        candidates: Sequence[Verb],
        tense: Tense | None,
        *,
        subjects: Sort = Sort.NONE,
        objects: Sort = Sort.NONE,
    ) -> Verb:
        fitting = [
            verb
            for verb in candidates
            if (not subjects or verb.subjects & subjects)
            and (not objects or verb.objects & objects)
            and (tense is None or tense in _tenses_of(verb))
            and verb.frame not in (Frame.WEATHER, Frame.COPULA)
        ]
        return self.choose.pick(fitting or [lexicon.TRANSITIVE[0]])

    def _with_adverbials(self, plan: Clause, wanted: Constraints) -> Clause:
        """Add time or frequency, manner and an optional place, and choose what stands first."""
        restricted = isinstance(plan.direct, Common) and plan.direct.relative is not None
        optional_place = plan.verb.frame in (Frame.INTRANSITIVE, Frame.TRANSITIVE, Frame.OBLIQUE)
        if plan.verb.manners and not restricted and not plan.companion and self.choose.chance(0.25):
            plan = replace(plan, manner=self.choose.pick(plan.verb.manners))
        if optional_place and not restricted and self.choose.chance(0.18):
            plan = replace(plan, place=self.static_place())
            if wanted.statement and self.choose.chance(0.35):
                plan = replace(plan, front=Slot.PLACE)
        plan = self._with_time(plan)
        if plan.time and plan.front is None and wanted.statement and (restricted or self.choose.chance(0.5)):
            return replace(plan, front=Slot.TIME)
        if restricted:
            return replace(plan, time=None, frequency=None if plan.frequency is lexicon.YET else plan.frequency)
        return plan

    def _with_time(self, plan: Clause) -> Clause:
        kind = self.choose.weighted((("none", 0.45), ("time", 0.4), ("frequency", 0.15)))
        quantified = plan.negated or _quantified(plan.subject)
        if kind == "time":
            return replace(plan, time=self.time(plan.tense, plan.modal, habitual=not quantified))
        if kind == "frequency" and plan.modal is None and plan.tense is not Tense.FUTURE:
            if plan.negated:
                return replace(plan, frequency=lexicon.YET) if plan.tense is Tense.PERFECT else plan
            if _quantified(plan.subject):
                return plan
            perfect = plan.tense is Tense.PERFECT
            options = lexicon.FREQUENCIES_PERFECT if perfect else lexicon.FREQUENCIES
            return replace(plan, frequency=self.choose.pick(options))
        return plan

    def time(self, tense: Tense, modal: Modal | None, *, habitual: bool) -> Adverbial:
        """An expression of time that goes with a tense."""
        if tense in (Tense.PAST, Tense.FUTURE) and self.choose.chance(0.33):
            return self.span(past=tense is Tense.PAST)
        if tense is Tense.PRESENT and self.choose.chance(0.2):
            return self.clock()
        options = _TIMES[tense]
        if modal and tense is Tense.PRESENT:
            options = (*options, *lexicon.TIMES_FUTURE)
        elif habitual and tense is Tense.PRESENT and self.choose.chance(0.3):
            options = lexicon.TIMES_HABITUAL
        return self.choose.pick(options)


def _tenses_of(verb: Verb) -> tuple[Tense, ...]:
    """The tenses of a verb in this grammar."""
    if verb.stative:
        return (Tense.PRESENT,) if verb.homograph else (Tense.PRESENT, Tense.PAST)
    if verb.homograph:
        return Tense.PRESENT, Tense.PERFECT, Tense.FUTURE
    return tuple(Tense)


def _quantified(phrase: NounPhrase) -> bool:
    """Whether a subject's quantifier would make the scope of a negation ambiguous."""
    return not definite(phrase)


def _animate(phrase: NounPhrase) -> bool:
    return not isinstance(phrase, Common) or bool(phrase.noun.sorts & Sort.BEING)


def _can_be_restricted(phrase: Common) -> bool:
    """Whether a restrictive relative clause makes sense: not after a possessor, a quantifier like "no", or bare."""
    plain = phrase.determiner in (lexicon.THE, lexicon.A, lexicon.MANY, lexicon.SOME, lexicon.ALL)
    return plain and phrase.owner is None
