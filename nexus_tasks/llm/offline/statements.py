"""Find the sentences that state something worth remembering about their speaker, and rate how specific they are.

Every rule looks at one sentence alone, so that the division of messages into batches does not change the result. The
rules are for English. They were written with the development half of LoCoMo, a benchmark of long conversations. There
the rules keep 3 of 10 sentences. LoCoMo also names the turns that are evidence for the answer to a question. Of 10 of
these turns, 9 keep at least one sentence.
"""

from __future__ import annotations

import re

from nexus_tasks.text import content_words, sentences, stem

LONGEST = 1_000  # the rules read only this many characters of a sentence, because a pasted log may be very long


def _any(*alternatives: str) -> str:
    return "(?:" + "|".join(alternatives) + ")"


def _words(listed: str) -> str:
    return _any(*listed.split())


def _rule(*alternatives: str) -> re.Pattern[str]:
    return re.compile(_any(*alternatives), re.IGNORECASE)


# --- the opening of a sentence ----------------------------------------------------------------------------------------
# Matches openings without content, and a name after such an opening: "Hey Ann, ", "Yeah, thanks! ", "By the way, ".
_GREETING = _any(
    _words(
        "wow whoa woah woohoo yeah yep yup yes no nope oh ah aww? haha\\w* lol well thanks hey hi hello sure ok okay"
    ),
    _words("cool great awesome nice absolutely totally exactly definitely btw so and but also anyways? actually right"),
    _words("honestly sorry morning congrats congratulations"),
    "thanks (?:so much|a lot)|thank you|by the way|good morning",
)
_OPENING = _rule(rf"(?:{_GREETING}(?:,? (?-i:[A-Z])\w+)?\s?[,!.:;–—-]+\s+)++")
# Matches the name of the listener at the end of a sentence: "Sounds good, Ann!"
_CALL = re.compile(r",\s[A-Z]\w+[\s!.…]*$")

# Matches reactions to another person. A reaction says nothing about its speaker.
_REACTION = _rule(
    r"(?:sounds?|looks?|enjoy|keep|hope|stay|remember|wow|how|congrat\w*|thanks?|bye|you|your|yours)\b",
    r"what a\b|tell me\b|of course\b|my (?:pleasure|advice)\b|me (?:too|neither)\b|no (?:worries|problem|way|doubt)\b",
    r"(?:just )?let me know\b|let['’]s\b|glad\b|happy (?:for|to hear)\b|sorry to hear\b|well done\b|way to\b|go for\b",
    r"good (?:luck|for|job|to|idea|point|call|night)\b|(?:great|nice|cool) (?:to|job|idea|point|call|one|work)\b",
    r"(?:a )?lot(?:['’]s| has| have)? happened\b|long time\b|(?:i['’]ll )?catch (?:up|ya|you)\b|it['’]s been ages\b",
    r"take care\b|see you\b|talk (?:soon|to you)\b|have (?:a|fun)\b|can['’]t wait to (?:see|hear)\b",
    r"don['’]t\b|never give\b|love (?:the|that|this|your|how)\b|(?:just )?(?:want|need) to say\b",
    r"(?:i|we)(?:['’]m|['’]re| am| are)? (?:\w+ )?(?:glad|happy|proud|sorry|excited|thrilled|here)\b(?:\s\w+)* you\b",
    r"i (?:[\w%]+ )?(?:hope|wish you|bet|guess|agree|understand|admire|wonder|hear you|feel you|get (?:it|that))\b",
    r"i (?:\w+ )?(?:know (?:what|how|you|that feeling)|see|love (?:that|your|how you))\b",
    r"i (?:\w+ )?appreciate (?:it|you|that|the)\b",
    r"i (?:can|could) (?:see|imagine|tell|relate|understand)\b|i can['’]t (?:believe|agree|imagine)\b",
    r"i(?:['’]ll| will) (?:\w+ )?(?:let you|keep (?:you|that|it)|check (?:it|that|them) out|give (?:it|that))\b",
)
# Matches remarks such as "That's so sweet" and "It was great". A remark is a reaction unless the remark has a name, a
# number or a date, or at least REMARK_WORDS words that are not vague.
_REMARK = _rule(r"(?:that|this|it)(?:['’]s| is| was| must| sounds?| looks?| seems?| would| will| makes?)\b")

# --- the person that a sentence is about ------------------------------------------------------------------------------
_FIRST_PERSON = _rule(
    r"\b(?:i|i['’](?:m|ve|d|ll)|im|ive|my|mine|me|myself|we|we['’](?:re|ve|d|ll)|our|ours|ourselves|(?-i:[Uu]s))\b"
)
_SECOND_PERSON = _rule(r"\b(?:you|your|yours|yourself|u|ur)\b")
# Matches sentences whose "I" is left out: "Just got back from Rome".
_ELLIPSIS = _rule(
    r"(?:just |recently |already |still |finally |also |currently )*"
    + _words(
        "been got went had have(?:n['’]t)? started finished took made met saw bought found visited signed joined moved "
        "decided tried working planning trying learning reading watching studying living hoping gonna spent won lost "
        "quit born love prefer like hate wish want need"
    )
    + r"\b",
    r"(?:thinking of|looking (?:for|forward)|going to|used to|grew up|can['’]t wait)\b",
)
# A third-person sentence without a name, number or date is a statement only when it begins with one of these words.
_DEFINITE_SUBJECT = _rule(r"(?:he|she|they|the|these|those|one of)\b")
# Matches a beginning with a pronoun, which stands for something in the sentence before: "And it's …", "They were …".
_POINTER = _rule(
    r"(?:(?:and|but|so|also|then|plus|because|yeah|well|yes|oh)[, ]+){0,3}"
    r"(?:(?-i:[Ii]ts?)|he|she|they|that|this|these|those|his|her|their|one of (?:them|these|those))"
    r"(?:['’](?:s|ll|d|re|ve))?(?=[\s,])"
)
# Matches a question that also states something: "I went hiking last week, have you tried it?"
_STATEMENT_AND_QUESTION = _rule(
    r"(?:i|we|my|our|just|been|got|had|went)\b.{12,}?[,;–—-]\s*(?:and |but |so )?"
    r"(?:have|has|do|does|did|are|is|was|were|can|could|would|will|what|how|where|when|why|who|any|you|ever)\b[^,]*\?\W*$"
)

# --- the content of a sentence ----------------------------------------------------------------------------------------
_SPECIFIC = _rule(
    r"\b\d[\d.,:/]*\w*",
    r"\b" + _words("two three four five six seven eight nine ten eleven twelve twenty fifty hundred thousand") + r"\b",
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b|\b(?-i:March|May)\b|\b(?:last|next|this|every) \w+|\b\w+ ago\b",
    r"\b" + _words("january february april june july august september october november december") + r"\b",
    r"\b" + _words("yesterday today tonight tomorrow weekends? morning evening") + r"\b",
)
# Matches a capitalized word inside a sentence, except "I". Such a word counts as a name.
_NAME = re.compile(r"(?<=[\w,;:\"'”’)] )[\"'“‘(]?(?!I\b)[A-Z]\w+")
_STRONG = _rule(
    r"\bi (?:\w+ )?(?:prefer|love|hate|dislike|adore|live|work|moved|decided|can['’]t stand)\b",
    r"\bwe (?:live|moved|decided)\b|\b(?:my name is|call me|no longer|any ?more)\b|\bmy favou?rite\b",
    r"\b" + _words("always never must deadline born married engaged allergic everyday") + r"\b",
    r"\bevery (?:day|week|month|year|morning)\b",
)
# Matches sentences such as "I'm a nurse" and "I am from Porto". One content word is enough in such a sentence.
_IDENTITY = _rule(r"\bi(?:['’]?m| am) (?:an?|from|allergic|\d+|vegan|vegetarian|married|single|pregnant|retired)\b")
# A sentence of only two content words needs one of these verbs, because "Rex and Mimi!" states nothing.
_STATES = _rule(
    r"\b" + _words("is are was were has have costs? starts? ends? runs? happens? lives? works? uses?") + r"\b"
)
_CAPTION = re.compile(r"\[image: [^\]]{0,1000}+\]")  # bounded, so that many beginnings without an end cost linear time
# Stems of vague words. A later question about the sentence will hardly contain one of these words.
_VAGUE = frozenset(
    content_words(
        """good great nice cool awesome amazing wonderful fantastic incredible fun best better big little lot lots much
        many thing stuff something anything everything way kind sort bit time day today people someone everyone sure
        definitely absolutely totally super pretty quite actually honestly maybe probably always never know think guess
        mean see look hear say said tell feel feeling believe hope wish want need love like enjoy try make made get got
        go come keep take give let help thank appreciate agree understand imagine excited happy glad proud sorry
        thrilled inspired inspiring special important worth life journey moment support wow congrats yes okay please
        not new back ever now still yet even right really one"""
    )
)

REMARK_WORDS = 4  # the fewest words of a remark that are not vague, for a fact: with 3, LoCoMo gives 6 % more facts

# Thai, Lao, Myanmar and Khmer have no spaces between words. The rules above count words, so they cannot read them.
_UNSPACED = re.compile("[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]")
UNSPACED_LETTERS = 12  # the fewest letters of a statement in these scripts, about three words (chosen by hand)
# Thai greetings and thanks, and the words of Thai questions.
_UNSPACED_TALK = _rule("^(?:สวัสดี|หวัดดี|ขอบคุณ|ขอบใจ|ขอโทษ|ยินดี|โอเค|ใช่|ไม่เป็นไร|ราตรีสวัสดิ์|ลาก่อน)")
_UNSPACED_QUESTION = _rule(
    "(?:ไหม|มั้ย|หรือเปล่า|รึเปล่า|หรือยัง|อะไร|ที่ไหน|เมื่อไหร่|เมื่อไร|ทำไม|อย่างไร|ยังไง|เท่าไหร่|เท่าไร|ใคร)(?:นะ)?(?:ครับ|คะ|ค่ะ|จ๊ะ)?[?？]?$"
)


def spoken(text: str) -> list[str]:
    """The sentences of ``text``. Captions of the form "[image: …]", which an importer appends, are left out."""
    return sentences(_CAPTION.sub("\n", text))


def is_statement(sentence: str, *, alone: bool = False) -> bool:
    """Whether ``sentence`` states something worth remembering about its speaker or the speaker's world.

    Args:
        alone: whether the sentence is a whole message. In a whole message, a general statement such as "Backups run
            hourly" also counts, because the message is probably a note. Within a longer message, a general statement is
            usually a platitude.
    """
    if sentence.startswith("[") and sentence.endswith("]"):
        return False  # The sentence is a marker, such as the marker for an attachment.
    head = sentence[:LONGEST]
    if 2 * len(_UNSPACED.findall(head)) > len(head):
        return _unspaced_says_enough(head)
    opening = _OPENING.match(head)
    core = _CALL.sub("", head[opening.end() :] if opening else head)
    if "?" in sentence[-4:] and not _STATEMENT_AND_QUESTION.match(core):
        return False
    specific = bool(_SPECIFIC.search(core) or _NAME.search(core))
    if _REACTION.match(core):
        return False
    if _REMARK.match(core) and not specific:
        return _meaningful(core) >= REMARK_WORDS and not _SECOND_PERSON.search(core)
    return _says_enough(core, specific, alone)


def _unspaced_says_enough(head: str) -> bool:
    """Whether a text in a script without spaces between words states something. Its spaces separate clauses."""
    clauses = (clause for clause in head.split() if not _UNSPACED_TALK.match(clause))
    said = "".join(clause for clause in clauses if not _UNSPACED_QUESTION.search(clause))
    return len(_UNSPACED.findall(said)) >= UNSPACED_LETTERS


def _says_enough(core: str, specific: bool, alone: bool) -> bool:
    content, meaningful = content_words(core), _meaningful(core)
    if _IDENTITY.match(core):
        return meaningful >= 1
    if _FIRST_PERSON.search(core) or _ELLIPSIS.match(core):
        return len(content) >= 2 and meaningful >= 1 and meaningful + specific + bool(_STRONG.search(core)) >= 2
    if _SECOND_PERSON.search(core):
        return False
    if specific or alone:
        return meaningful >= 2 and (len(content) > 2 or bool(_STATES.search(core)))
    return bool(_DEFINITE_SUBJECT.match(core)) and meaningful >= 3


def _meaningful(text: str) -> int:
    """The number of different words that are neither stop words nor vague."""
    return len({word for word in content_words(text) if word not in _VAGUE})


def points_back(sentence: str, before: str) -> bool:
    """Whether ``sentence`` begins with a word such as "it" or "they" that may mean something in ``before``.

    A question, and a sentence of vague words alone such as "Thanks!", is nothing to point back to.
    """
    return bool(_POINTER.match(sentence)) and "?" not in before[-4:] and _meaningful(before[-LONGEST:]) > 0


def is_vague(word: str) -> bool:
    """Whether the lower-case ``word`` is a vague word such as "thing" or "great"."""
    return stem(word) in _VAGUE


def strength(sentence: str) -> int:
    """The number of kinds of markers that ``sentence`` has, 0 to 3.

    The three kinds are: a strong verb or adverb, a number or date, and a name.
    """
    return sum(bool(pattern.search(sentence)) for pattern in (_STRONG, _SPECIFIC, _NAME))
