"""English and German sentences with their word alignments, for first steps and tests.

``german`` has the endings, ``lexicon`` the words; ``phrases`` puts them into the order of each language, and
``sentences`` draws what is said. Both sides come about together, so each English sentence has one translation.
"""
